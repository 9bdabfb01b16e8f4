#include "io/metrics_reader.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/io.h"

namespace so {
namespace {

using io_test::expect_error;
using io_test::read_file;
using io_test::TemporaryDirectory;
using io_test::write_file;

StepMetrics step_of(std::int64_t step, double loss) {
  StepMetrics m;
  m.step = step;
  m.loss = loss;
  m.grad_norm = 4;
  m.clip = 0.25;
  m.lr = 1e-5;
  m.tokens = 100;
  m.step_time_s = 2;
  m.tokens_per_s = 50;
  m.host_memory_bytes = 7;
  m.device_memory_bytes = 8;
  m.overlap = {.efficiency = 0.5,
               .device_seconds = {{"work", static_cast<double>(step)}, {"host", 1}},
               .host_seconds = {{"adamw", 1}}};
  return m;
}

RunFacts facts_of() {
  RunFacts facts;
  facts.program = "1.2";
  facts.model = "m";
  facts.device = "CPU";
  facts.ranks = 2;
  facts.total_steps = 9;
  facts.time = 1.5;
  facts.settings = {{"lr", "1e-05", "file", "ds.json: lr", "2e-5"}, {"seed", "1", "default"}};
  facts.memory = {{.kind = "device", .name = "weights", .planned = 4096, .phases = "loading"}};
  facts.step_seconds = 3;
  facts.overlap = OverlapRecord{.efficiency = 0.75, .device_seconds = {{"work", 2}}, .host_seconds = {}};
  return facts;
}

TEST(MetricsReader, ReadsWhatTheLogWrites) {
  TemporaryDirectory output;
  MetricsLog log(output.path());
  log.start(0, facts_of());
  log.evaluation(0, 5);
  for (std::int64_t step = 1; step <= 3; ++step) log.step(step_of(step, 5.0 - static_cast<double>(step)));
  StepMetrics skipped = step_of(4, std::nan(""));
  skipped.skipped = true;
  skipped.skipped_tensor = "t";
  skipped.skipped_origin = "the loss";
  log.step(skipped);
  RunTotals totals;
  totals.steps = 4;
  totals.outcome = "interrupted";
  log.summary(4, std::vector<PlannedFigure>{{"step_seconds", 3, 2}}, totals,
              std::vector<NamedMemory>{{.kind = "device", .name = "weights", .planned = 4096, .measured = 4000.0},
                                       {.kind = "pageable", .name = "libraries", .planned = 1}});

  const RecordedRun run = read_metrics_file(output.path());
  EXPECT_EQ(run.damage, "");
  EXPECT_EQ(run.lines, 7u);
  ASSERT_EQ(run.steps.size(), 4u);
  EXPECT_EQ(run.steps[1].step, 2);
  EXPECT_EQ(run.steps[1].loss, 3);
  EXPECT_EQ(run.steps[1].grad_norm, 4);
  EXPECT_EQ(run.steps[1].clip, 0.25);
  EXPECT_EQ(run.steps[1].lr, 1e-5);
  EXPECT_EQ(run.steps[1].tokens, 100);
  EXPECT_EQ(run.steps[1].step_time_s, 2);
  EXPECT_EQ(run.steps[1].tokens_per_s, 50);
  EXPECT_EQ(run.steps[1].host_memory_bytes, 7);
  EXPECT_EQ(run.steps[1].device_memory_bytes, 8);
  EXPECT_FALSE(run.steps[1].skipped);
  EXPECT_TRUE(run.steps[3].skipped);
  EXPECT_TRUE(std::isnan(run.steps[3].loss));
  ASSERT_EQ(run.skips.size(), 1u);
  EXPECT_EQ(run.skips[0].tensor, "t");
  EXPECT_EQ(run.skips[0].origin, "the loss");
  ASSERT_EQ(run.evaluations.size(), 1u);
  EXPECT_EQ(run.evaluations[0].loss, 5);
  // The steps after the first have 2, 3 and 4 seconds of work.
  EXPECT_EQ(run.mean_overlap.device_seconds, (NamedSeconds{{"work", 3}, {"host", 1}}));
  EXPECT_EQ(run.mean_overlap.host_seconds, (NamedSeconds{{"adamw", 1}}));
  EXPECT_EQ(run.mean_overlap.efficiency, 0.5);

  ASSERT_EQ(run.starts.size(), 1u);
  const RunFacts& facts = run.starts[0].facts;
  EXPECT_EQ(facts.program + facts.model + facts.device, "1.2mCPU");
  EXPECT_EQ(facts.ranks, 2);
  EXPECT_EQ(facts.total_steps, 9);
  EXPECT_EQ(facts.time, 1.5);
  ASSERT_EQ(facts.settings.size(), 2u);
  EXPECT_EQ(facts.settings[0].where + facts.settings[0].overridden, "ds.json: lr2e-5");
  EXPECT_EQ(facts.settings[1].name + facts.settings[1].value + facts.settings[1].origin, "seed1default");
  ASSERT_EQ(facts.memory.size(), 1u);
  EXPECT_EQ(facts.memory[0].planned, 4096u);
  EXPECT_EQ(facts.memory[0].phases, "loading");
  EXPECT_EQ(facts.step_seconds, 3);
  ASSERT_TRUE(facts.overlap);
  EXPECT_EQ(facts.overlap->efficiency, 0.75);

  EXPECT_TRUE(run.ended);
  ASSERT_EQ(run.ends.size(), 1u);
  EXPECT_EQ(run.ends[0].outcome, "interrupted");
  ASSERT_EQ(run.ends[0].figures.size(), 1u);
  EXPECT_EQ(run.ends[0].figures[0].measured, 2);
  ASSERT_EQ(run.ends[0].memory.size(), 2u);
  EXPECT_EQ(run.ends[0].memory[0].measured, 4000.0);
  EXPECT_FALSE(run.ends[0].memory[1].measured) << "null";
}

TEST(MetricsReader, LeavesOutALineThatIsBeingWritten) {
  const std::string whole = "{\"step\":1,\"loss\":2}\n{\"step\":2,\"loss\":1}\n";
  for (std::size_t bytes = 0; bytes <= whole.size(); ++bytes) {
    const RecordedRun run = read_metrics_text(whole.substr(0, bytes));
    EXPECT_EQ(run.damage, "") << bytes;
    EXPECT_EQ(run.steps.size(), bytes == whole.size() ? 2u : bytes > whole.size() / 2 - 1 ? 1u : 0u) << bytes;
  }
}

TEST(MetricsReader, ReadsUpToDamage) {
  for (const char* bad :
       {"x", "[1]", "{\"loss\":1}", "{\"step\":-1,\"loss\":1}", "{\"step\":1.5}", "{\"step\":3,\"loss\":1", "\xff"}) {
    const RecordedRun run =
        read_metrics_text("{\"step\":1,\"loss\":2}\n" + std::string(bad) + "\n{\"step\":3,\"loss\":1}\n");
    EXPECT_EQ(run.steps.size(), 1u) << bad;
    EXPECT_EQ(run.damage.substr(0, 7), "line 2 ") << bad;
  }
}

TEST(MetricsReader, TakesOddValuesForNone) {
  const RecordedRun run = read_metrics_text(
      "{\"step\":1,\"loss\":\"high\",\"grad_norm\":null,\"skipped\":1,\"device_seconds\":[1]}\n"
      "{\"step\":2,\"loss\":1,\"device_seconds\":{\"work\":\"x\",\"host\":1}}\n"
      "{\"step\":2,\"start\":7}\n{\"step\":2,\"start\":{\"settings\":[1,{}],\"memory\":{},\"ranks\":-1,\"plan\":[]}}\n"
      "{\"step\":2,\"summary\":[],\"run\":3,\"memory\":[7,{\"planned\":1e300}]}\n{\"step\":3,\"of a later version\":1}\n");
  EXPECT_EQ(run.damage, "");
  ASSERT_EQ(run.steps.size(), 2u);
  EXPECT_TRUE(std::isnan(run.steps[0].loss));
  EXPECT_FALSE(run.steps[0].skipped);
  EXPECT_EQ(run.mean_overlap.device_seconds, (NamedSeconds{{"host", 1}}));
  EXPECT_EQ(run.starts.size(), 2u);
  EXPECT_EQ(run.ends.at(0).memory.size(), 1u);
}

// As where a run was resumed by hand from an earlier copy of its directory.
TEST(MetricsReader, LaterLinesOfAStepCount) {
  const RecordedRun run = read_metrics_text(
      "{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":2}\n{\"step\":2,\"eval_loss\":2}\n{\"step\":3,\"loss\":3}\n"
      "{\"step\":3,\"summary\":{}}\n{\"step\":2,\"loss\":20}\n{\"step\":2,\"eval_loss\":20}\n");
  ASSERT_EQ(run.steps.size(), 2u);
  EXPECT_EQ(run.steps[1].loss, 20);
  ASSERT_EQ(run.evaluations.size(), 1u);
  EXPECT_EQ(run.evaluations[0].loss, 20);
  EXPECT_FALSE(run.ended) << "it went on";
}

TEST(MetricsReader, NamesWhatIsMissing) {
  TemporaryDirectory directory;
  expect_error([&] { read_metrics_file(directory / "absent"); }, {"absent", "no such directory"});
  expect_error([&] { read_metrics_file(directory.path()); }, {"holds no metrics.jsonl", "--output_dir"});
  write_file(directory / "metrics.jsonl", "");
  EXPECT_TRUE(read_metrics_file(directory.path()).empty());
}

}  // namespace
}  // namespace so
