#include "io/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/child_process.h"
#include "support/io.h"

namespace so {
namespace {

using io_test::expect_error;
using io_test::read_file;
using io_test::TemporaryDirectory;
using io_test::write_file;

StepMetrics step_metrics(std::int64_t step) {
  StepMetrics m;
  m.step = step;
  m.epoch = 0.1;
  m.loss = 1.0 / 3.0;
  m.grad_norm = 0.1 + 0.2;           // 0.30000000000000004: seventeen digits
  m.lr = 5e-324;                     // the smallest double
  m.tokens = 9'007'199'254'740'993;  // beyond what a double holds
  m.step_time_s = 2.5;
  m.tokens_per_s = 1e22;
  m.model_tflops = 12;
  m.reference_tflops = 16;
  m.host_memory_bytes = 18'446'744'073'709'551'615u;
  m.device_memory_bytes = 0;
  m.overlap = {.efficiency = 0.75, .device_seconds = {{"work", 1.5}, {"verdict", 1.0}}, .host_seconds = {}};
  return m;
}

std::vector<nlohmann::ordered_json> lines_of(const std::filesystem::path& path) {
  std::vector<nlohmann::ordered_json> lines;
  std::istringstream in(read_file(path));
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::ordered_json::parse(line));
  return lines;
}

TEST(MetricsLog, KeepsEveryDigit) {
  TemporaryDirectory output;
  MetricsLog log(output.path());
  log.step(step_metrics(7));
  const auto lines = lines_of(output / "metrics.jsonl");  // before the log is closed: nothing waits in a buffer
  ASSERT_EQ(lines.size(), 1u);
  const auto& line = lines[0];
  std::vector<std::string> keys;
  for (const auto& item : line.items()) keys.push_back(item.key());
  EXPECT_EQ(keys,
            (std::vector<std::string>{"step", "epoch", "loss", "grad_norm", "clip", "lr", "tokens", "step_time_s",
                                      "tokens_per_s", "model_tflops", "reference_tflops", "host_memory_bytes",
                                      "device_memory_bytes", "overlap_efficiency", "device_seconds", "host_seconds"}));
  EXPECT_EQ(line["overlap_efficiency"], 0.75);
  EXPECT_EQ(line["device_seconds"].dump(), R"({"work":1.5,"verdict":1.0})");
  EXPECT_EQ(line["host_seconds"].dump(), "{}") << "no optimizer state was the host's";
  EXPECT_EQ(line["step"], 7);
  EXPECT_EQ(line["epoch"].get<double>(), 0.1);
  EXPECT_EQ(line["loss"].get<double>(), 1.0 / 3.0);
  EXPECT_EQ(line["grad_norm"].get<double>(), 0.1 + 0.2);
  EXPECT_EQ(line["lr"].get<double>(), 5e-324);
  EXPECT_EQ(line["tokens"].get<std::int64_t>(), 9'007'199'254'740'993);
  EXPECT_EQ(line["tokens_per_s"].get<double>(), 1e22);
  EXPECT_EQ(line["host_memory_bytes"].get<std::uint64_t>(), 18'446'744'073'709'551'615u);
}

TEST(MetricsLog, WritesSkippedStepsAndEvaluations) {
  TemporaryDirectory output;
  MetricsLog log(output.path());
  StepMetrics m = step_metrics(1);
  m.loss = std::numeric_limits<double>::quiet_NaN();
  m.grad_norm = std::numeric_limits<double>::infinity();
  m.skipped = true;
  m.skipped_origin = "the loss";
  m.skipped_tensor = "model.\"layers\".0\n\xff";
  log.step(m);
  log.evaluation(1, 0.7);
  const auto lines = lines_of(log.path());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(lines[0]["loss"].is_null());
  EXPECT_TRUE(lines[0]["grad_norm"].is_null());
  EXPECT_EQ(lines[0]["skipped"], true);
  EXPECT_EQ(lines[0]["skipped_origin"], "the loss");
  EXPECT_EQ(lines[0]["skipped_tensor"], "model.\"layers\".0\n\xef\xbf\xbd");  // U+FFFD for the bad byte
  EXPECT_EQ(lines[1], (nlohmann::ordered_json{{"step", 1}, {"eval_loss", 0.7}}));
}

TEST(MetricsLog, WritesWhatWasPlannedBesideWhatCame) {
  TemporaryDirectory output;
  MetricsLog log(output.path());
  log.step(step_metrics(3));
  const std::vector<PlannedFigure> figures{{"step_seconds", 2, 2.5}, {"pinned_bytes", 0, 4096}};
  log.summary(3, figures);
  const auto lines = lines_of(log.path());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1]["step"], 3);
  const auto& summary = lines[1]["summary"];
  EXPECT_EQ(summary["step_seconds"],
            (nlohmann::ordered_json{{"planned", 2.0}, {"measured", 2.5}, {"difference", 0.25}}));
  EXPECT_EQ(summary["pinned_bytes"]["measured"], 4096);
  EXPECT_TRUE(summary["pinned_bytes"]["difference"].is_null());
  // A run that goes on keeps it, one that goes back drops it.
  log.truncate_after(3);
  EXPECT_EQ(lines_of(log.path()).size(), 2u);
  log.truncate_after(2);
  EXPECT_EQ(read_file(log.path()), "");
}

TEST(MetricsLog, AppendsToWhatIsThere) {
  TemporaryDirectory output;
  MetricsLog(output.path()).step(step_metrics(1));
  MetricsLog(output.path()).step(step_metrics(2));
  EXPECT_EQ(lines_of(output / "metrics.jsonl").size(), 2u);
  expect_error([&] { MetricsLog{output / "absent"}; }, {"cannot append to", "absent/metrics.jsonl"});
}

TEST(MetricsLog, ResumesAfterAStep) {
  TemporaryDirectory output;
  // Spaces and digits as another program might write them: kept lines keep their bytes.
  write_file(
      output / "metrics.jsonl",
      "{\"step\": 1, \"loss\": 1.50}\n{\"step\":2}\n{\"step\":2,\"eval_loss\":3}\n{\"step\":3}\n{\"step\":4,\"lo");
  MetricsLog log(output.path());  // drops the line that was cut short
  EXPECT_EQ(lines_of(log.path()).size(), 4u);
  log.truncate_after(2);
  EXPECT_EQ(read_file(log.path()), "{\"step\": 1, \"loss\": 1.50}\n{\"step\":2}\n{\"step\":2,\"eval_loss\":3}\n");
  log.step(step_metrics(3));
  EXPECT_EQ(lines_of(log.path()).size(), 4u);
  EXPECT_EQ(lines_of(log.path())[3]["step"], 3);
  log.truncate_after(0);
  EXPECT_EQ(read_file(log.path()), "");
  EXPECT_EQ(io_test::names_in(output.path()), std::vector<std::string>{"metrics.jsonl"});
}

TEST(MetricsLog, NamesALineThatIsNoMetrics) {
  TemporaryDirectory output;
  for (const char* bad : {"", "[1]", "{\"loss\":1}", "{\"step\":1.5}", "{\"step\":1", "{\"step\":1}x"}) {
    SCOPED_TRACE(bad);
    write_file(output / "metrics.jsonl", "{\"step\":1}\n" + std::string(bad) + "\n{\"step\":2}\n");
    MetricsLog log(output.path());
    expect_error([&] { log.truncate_after(1); }, {"metrics.jsonl:2: not a line of metrics"});
  }
}

TEST(MetricsLog, SurvivesBeingKilled) {
  TemporaryDirectory output;
  std::size_t seen = 0;
  // Ten kills at growing delays; if a slow machine got nothing done in that time, longer ones.
  for (int round = 0; round < 10 || (seen < 2 && round < 60); ++round) {
    ASSERT_TRUE(io_test::kill_child_after(round < 10 ? 300 + 500 * round : 50'000 * (round - 9), [&] {
      MetricsLog log(output.path());
      for (std::int64_t step = 1;; ++step) {
        log.step(step_metrics(step));
        if (step % 20 != 0) continue;
        step -= 10;
        log.truncate_after(step);
      }
    }));
    MetricsLog log(output.path());
    std::int64_t previous = 0;
    for (const auto& line : lines_of(log.path())) {
      EXPECT_EQ(line["step"].get<std::int64_t>(), ++previous);
      EXPECT_EQ(line["loss"].get<double>(), 1.0 / 3.0);
    }
    seen = std::max(seen, static_cast<std::size_t>(previous));
    log.truncate_after(0);
  }
  EXPECT_GE(seen, 2u);  // else no child got to writing
}

}  // namespace
}  // namespace so
