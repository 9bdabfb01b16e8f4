// superoffload train --trace.
#include <gtest/gtest.h>

#include "support/process.h"
#include "support/refusal.h"
#include "support/trace_reader.h"
#include "support/training_run.h"

namespace so::test {
namespace {

TrainCommand training(const TemporaryDirectory& directory) {
  TrainCommand c(model_fixture("qwen3-tied") / "model", model_fixture("qwen3-tied") / "data.jsonl", directory / "out");
  c.set("batch_size", "2").set("max_length", "48").set("max_steps", "4").set("trace", (directory / "t.json").string());
  return c;
}

TEST(Trace, OfATrainingStepShowsStreamsHostWorkAndWaits) {
  const TemporaryDirectory directory;
  const Outcome outcome = run(training(directory).words(), directory.path());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("t.json"), std::string::npos) << outcome.err;
  const WrittenTrace trace = read_trace(directory / "t.json");
  ASSERT_TRUE(trace.streams.contains("compute"));
  ASSERT_TRUE(trace.streams.contains("to host"));
  ASSERT_TRUE(trace.streams.contains("to device"));
  const auto work = trace.names(trace.streams);
  if (on_gpu()) {  // kernels, by the names they were compiled with
    for (const char* part : {"swiglu_kernel", "rms_norm_grad_kernel", "loss_kernel", "gemm", "copy"})
      EXPECT_TRUE(std::any_of(work.begin(), work.end(), [&](const auto& name) {
        return name.find(part) != std::string::npos;
      })) << part;
  } else {
    for (const char* name : {"linear", "linear_grad_weight", "attention", "attention_grad", "rms_norm_grad", "copy"})
      EXPECT_TRUE(work.contains(name)) << name;
  }
  const auto host = trace.names(trace.threads);
  for (const char* name : {"step", "wait for an event"}) EXPECT_TRUE(host.contains(name)) << name;
  // Buckets are updated in any of several ways.
  EXPECT_TRUE(std::any_of(host.begin(), host.end(), [](const auto& name) { return name.starts_with("AdamW"); }));
  const auto& main = trace.threads.at("main");
  EXPECT_EQ(std::count_if(main.begin(), main.end(), [](const auto& span) { return span.name == "step"; }), 1);
}

TEST(Trace, OfSeveralSteps) {
  const TemporaryDirectory directory;
  const Outcome outcome = run(training(directory).set("trace_steps", "2").words(), directory.path());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto main = read_trace(directory / "t.json").threads.at("main");
  EXPECT_EQ(std::count_if(main.begin(), main.end(), [](const auto& span) { return span.name == "step"; }), 2);
}

// The trace shows what became of each bucket, in the order of its states.
TEST(Trace, ShowsTheStatesOfBuckets) {
  const TemporaryDirectory directory;
  TrainCommand c = training(directory).set("mode", "superoffload").set("offload_ratio", "1");
  c.set("streamed_layers", "2").set("bucket_size", "16384").set("max_steps", "6").set("trace_steps", "3");
  const Outcome outcome = run(c.words(), directory.path());
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const WrittenTrace trace = read_trace(directory / "t.json");
  ASSERT_GE(trace.buckets.size(), 4u);
  for (const auto& [bucket, spans] : trace.buckets) {
    SCOPED_TRACE("bucket " + std::to_string(bucket));
    std::vector<std::string> states;
    for (const auto& span : spans) states.push_back(span.kind);
    // Whole rounds of a step: those that the trace's ends cut are left out.
    int rounds = 0;
    for (auto landing = std::find(states.begin(), states.end(), "landing"); landing != states.end();) {
      const auto next = std::find(landing + 1, states.end(), "landing");
      std::vector<std::string> round(landing, next);
      round.erase(std::unique(round.begin(), round.end()), round.end());
      landing = next;
      if (round.back() != "returning") continue;
      ++rounds;
      ASSERT_GE(round.size(), 4u);
      EXPECT_EQ(round[1], "deferred");
      EXPECT_EQ(round[round.size() - 2], "committed");
      for (std::size_t i = 2; i + 2 < round.size(); ++i)
        EXPECT_TRUE(
            std::set<std::string>({"deferred", "speculated", "previewed", "owing", "discarded"}).contains(round[i]))
            << round[i];
    }
    EXPECT_GE(rounds, 1);
  }
}

TEST(Trace, IsRefusedWhereThereIsNothingToTraceOrNowhereToWrite) {
  const TemporaryDirectory directory;
  expect_refusal(run(training(directory).set("max_steps", "2").words(), directory.path()), {"--trace", "third step"});
  expect_refusal(run(training(directory).set("trace", "/proc/none/t.json").words(), directory.path()), {"/proc/none"});
  EXPECT_FALSE(std::filesystem::exists(directory / "out")) << "refused before anything was written";
  // A file that somebody else wrote is theirs, in a dry run as in a run; a trace of this program may be written again.
  write_file(directory / "t.json", "mine");
  for (const char* flag : {"packing", "dry_run"})
    expect_refusal(run(training(directory).flag(flag).words(), directory.path()), {"--trace", "did not write it"});
  EXPECT_EQ(read_file(directory / "t.json"), "mine");
  std::filesystem::remove(directory / "t.json");
  expect_refusal(run(training(directory).without("trace").set("trace_steps", "2").words(), directory.path()),
                 {"--trace_steps", "--trace FILE"});
}

}  // namespace
}  // namespace so::test
