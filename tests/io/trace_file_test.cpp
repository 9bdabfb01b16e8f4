#include "io/trace_file.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "support/errors.h"
#include "support/files.h"
#include "support/trace_reader.h"

namespace so {
namespace {

TEST(TraceFile, HasNamedTracksAndEveryActivity) {
  Trace trace;
  trace.tracks = {{"compute", true}, {"main", false}};
  trace.activities = {{0, TraceKind::work, "gemm \"a\"", 1000, 3500},
                      {1, TraceKind::wait, "synchronize", 1500, 4000},
                      {0, TraceKind::copy, "copy", 4000, 6000, 8000, CopyDirection::device_to_host}};
  trace.remarks = {"none of the GPU"};
  const test::TemporaryDirectory directory;
  write_trace_file(directory / "t.json", trace);
  const auto file = nlohmann::json::parse(test::read_file(directory / "t.json"));
  EXPECT_EQ(file["otherData"]["remarks"], nlohmann::json({"none of the GPU"}));
  std::map<std::pair<int, int>, std::string> threads;
  std::map<int, std::string> processes;
  std::vector<nlohmann::json> spans;
  for (const auto& event : file["traceEvents"]) {
    if (event["name"] == "process_name")
      processes[event["pid"]] = event["args"]["name"];
    else if (event["name"] == "thread_name")
      threads[{event["pid"], event["tid"]}] = event["args"]["name"];
    else
      spans.push_back(event);
  }
  ASSERT_EQ(spans.size(), 3u);
  const auto thread = [&](int i) { return threads.at({spans[i]["pid"], spans[i]["tid"]}); };
  EXPECT_EQ(thread(0), "compute");
  EXPECT_EQ(thread(1), "main");
  EXPECT_EQ(thread(2), "compute");
  EXPECT_EQ(processes.at(spans[0]["pid"]), "streams");
  EXPECT_EQ(processes.at(spans[1]["pid"]), "host threads");
  EXPECT_EQ(spans[0]["name"], "gemm \"a\"");
  EXPECT_EQ(spans[0]["ph"], "X");
  EXPECT_EQ(spans[0]["ts"], 1.0);  // microseconds
  EXPECT_EQ(spans[0]["dur"], 2.5);
  EXPECT_EQ(spans[1]["cat"], "wait");
  EXPECT_EQ(spans[2]["args"]["bytes"], 8000);
  EXPECT_EQ(spans[2]["args"]["direction"], "device to host");
  EXPECT_EQ(spans[2]["args"]["GB/s"], 4.0);
}

// Buckets 0 and 1 overlap, 2 comes when both rows are free again; 1 finds its own row, though the lowest is free too.
TEST(TraceFile, StatesOfBucketsShareRows) {
  Trace trace;
  trace.bucket_states = {{0, "landing", 0, 10},    {1, "landing", 5, 15},  {0, "speculated", 10, 20},
                         {1, "committed", 20, 30}, {2, "landing", 20, 40}, {3, "landing", 25, 35},
                         {2, "speculated", 40, 41}};
  const test::TemporaryDirectory directory;
  write_trace_file(directory / "t.json", trace);
  const test::WrittenTrace written = test::read_trace(directory / "t.json");
  const auto names = [&](const std::string& row) {
    std::vector<std::string> all;
    for (const auto& span : written.bucket_rows.at(row)) all.push_back(span.name);
    return all;
  };
  EXPECT_EQ(names("row 1"), (std::vector<std::string>{"landing 0", "speculated 0", "landing 2", "speculated 2"}));
  EXPECT_EQ(names("row 2"), (std::vector<std::string>{"landing 1", "committed 1"}));
  EXPECT_EQ(names("row 3"), (std::vector<std::string>{"landing 3"}));
  EXPECT_EQ(written.bucket_rows.size(), 3u);
  ASSERT_EQ(written.buckets.at(0).size(), 2u);
  EXPECT_EQ(written.buckets.at(0)[1].kind, "speculated");
  EXPECT_EQ(written.buckets.at(0)[1].begin, 0.01);
  EXPECT_EQ(written.buckets.at(0)[1].end, 0.02);
  EXPECT_TRUE(written.streams.empty() && written.threads.empty());
}

// As an engine records them: from several threads, some begun before the session.
TEST(TraceFile, StatesRecordedByThreadsReachTheFile) {
  const test::TemporaryDirectory directory;
  const auto device = make_dry_device(DeviceKind::cpu);
  trace_bucket_state(0, "nobody looks", 0, trace_now());
  {
    const std::int64_t before = trace_now();
    TraceSession session(*device);
    trace_bucket_state(0, "over before", before - 1, before);
    {
      std::vector<std::jthread> threads;
      for (int thread = 0; thread < 4; ++thread)
        threads.emplace_back([thread] {
          for (int bucket = thread; bucket < 100; bucket += 4) {
            const std::int64_t landed = trace_now();
            trace_bucket_state(bucket, "landing", 0, landed);
            trace_bucket_state(bucket, "idle", landed, trace_now());
          }
        });
    }
    write_trace_file(directory / "t.json", session.stop());
  }
  const test::WrittenTrace written = test::read_trace(directory / "t.json");
  ASSERT_EQ(written.buckets.size(), 100u);
  for (const auto& [bucket, states] : written.buckets) {
    ASSERT_EQ(states.size(), 2u) << bucket;
    EXPECT_EQ(states[0].kind, "landing");
    EXPECT_EQ(states[0].begin, 0) << "from the start of the session";
    EXPECT_EQ(states[1].kind, "idle");
    EXPECT_EQ(states[0].end, states[1].begin);
  }
}

TEST(TraceFile, SaysWhichFileCannotBeWritten) {
  const test::TemporaryDirectory directory;
  test::expect_in(test::refusal([&] { write_trace_file(directory.path() / "none" / "t.json", {}); }), {"none"});
}

}  // namespace
}  // namespace so
