// docs/metrics.md and the table behind it against what is written.
#include "io/metric_fields.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "io/metrics.h"
#include "io/tensorboard.h"
#include "support/generated_text.h"
#include "support/io.h"

namespace so {
namespace {

using FieldNames = std::set<std::string>;

// The names of a value's parts, as the table has them.
void add_names(const nlohmann::json& value, const std::string& name, FieldNames& names) {
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items()) {
      const bool named = name.ends_with("device_seconds") || name.ends_with("host_seconds");
      const std::string own = named ? "NAME" : name == "summary" ? "FIGURE" : key;
      add_names(inner, name.empty() ? own : name + "." + own, names);
    }
  } else if (value.is_array()) {
    for (const nlohmann::json& inner : value) add_names(inner, name + "[]", names);
  } else {
    names.insert(name);
  }
}

const OverlapRecord some_overlap{.efficiency = 0.5, .device_seconds = {{"work", 1}}, .host_seconds = {{"adamw", 2}}};

void write_every_field(const std::filesystem::path& output) {
  MetricsLog log(output);
  const NamedMemory memory{.kind = "pinned", .name = "gradients", .planned = 4, .phases = "loading", .measured = 3.0};
  RunFacts facts;
  facts.settings = {{"lr", "1e-05", "file", "ds.json: optimizer", "2e-5 from run.yaml"}};
  facts.memory = {memory};
  facts.overlap = some_overlap;
  log.start(0, facts);
  StepMetrics step;
  step.overlap = some_overlap;
  step.skipped = true;
  log.step(step);
  log.evaluation(1, 2);
  log.samples(1, {.samples = 2, .tokens = 9, .seconds = 0.5});
  RunTotals totals;
  totals.steps = 1;
  totals.overlap = some_overlap;
  totals.best_evaluation = totals.last_evaluation = {1, 2};
  log.summary(1, std::vector<PlannedFigure>{{"step_seconds", 1, 2}}, totals, std::vector{memory});
}

TEST(MetricFields, AreThoseThatAreWritten) {
  io_test::TemporaryDirectory output;
  write_every_field(output.path());
  std::istringstream lines(io_test::read_file(output / "metrics.jsonl"));
  FieldNames seen;
  for (std::string text; std::getline(lines, text);) {
    const nlohmann::json line = nlohmann::json::parse(text);
    const std::string kind = line.contains("start")       ? "start"
                             : line.contains("loss")      ? "step"
                             : line.contains("eval_loss") ? "evaluation"
                             : line.contains("samples")   ? "samples"
                                                          : "end";
    FieldNames written, listed;
    add_names(line, "", written);
    for (const MetricField& field : metric_fields())
      if (field.line == kind) listed.emplace(field.name);
    EXPECT_EQ(listed, written) << kind;
    seen.insert(kind);
  }
  EXPECT_EQ(seen, (FieldNames{"start", "step", "evaluation", "samples", "end"}));
}

TEST(MetricFields, NameTheScalarsOfTensorBoard) {
  io_test::TemporaryDirectory output;
  TensorBoardWriter writer(output.path());
  StepMetrics step;
  step.overlap = {.efficiency = 1, .device_seconds = {{"NAME", 1}}, .host_seconds = {{"NAME", 2}}};
  writer.step(step);
  writer.evaluation(1, 2);
  writer.summary(1, std::vector<PlannedFigure>{{"FIGURE", 1, 2}});
  const std::string events = io_test::read_file(writer.path());
  std::size_t tags = 0, named = 0;
  for (const char* room : {"train/", "eval/", "overlap/", "plan/"})
    for (std::size_t at = events.find(room); at != events.npos; at = events.find(room, at + 1)) ++tags;
  for (const MetricField& field : metric_fields()) {
    if (field.tensorboard.empty()) continue;
    ++named;
    EXPECT_NE(events.find(field.tensorboard), std::string::npos) << field.tensorboard;
  }
  EXPECT_EQ(named, tags) << "a scalar is in no row";
}

TEST(MetricFields, DocumentMatchesTheTable) { expect_generated_text("metrics.md", "fields", metric_fields_markdown()); }

}  // namespace
}  // namespace so
