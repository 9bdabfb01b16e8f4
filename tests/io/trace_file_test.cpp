#include "io/trace_file.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/errors.h"
#include "support/files.h"

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

TEST(TraceFile, SaysWhichFileCannotBeWritten) {
  const test::TemporaryDirectory directory;
  test::expect_in(test::refusal([&] { write_trace_file(directory.path() / "none" / "t.json", {}); }), {"none"});
}

}  // namespace
}  // namespace so
