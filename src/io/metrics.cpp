#include "io/metrics.h"

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json_tree.h"

namespace so {
namespace {

using ordered_json = nlohmann::ordered_json;

// nlohmann prints doubles so that they read back equal, and NaN and infinities as null. Names of tensors may hold
// anything: bytes that are not UTF-8 are replaced rather than refused, so that a log line never ends a run.
std::string line_of(const ordered_json& object) {
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

ordered_json to_object(const NamedSeconds& parts) {
  ordered_json object = ordered_json::object();
  for (const auto& [name, seconds] : parts) object[name] = seconds;
  return object;
}

void add(ordered_json& object, const OverlapRecord& overlap) {
  object["overlap_efficiency"] = overlap.efficiency;
  object["device_seconds"] = to_object(overlap.device_seconds);
  object["host_seconds"] = to_object(overlap.host_seconds);
}

ordered_json to_object(const NamedMemory& m) {
  ordered_json object{{"kind", m.kind}, {"name", m.name}, {"planned", m.planned}};
  if (!m.phases.empty()) object["phases"] = m.phases;
  return object;
}

ordered_json to_object(const RecordedSetting& s) {
  ordered_json object{{"name", s.name}, {"value", s.value}, {"origin", s.origin}};
  if (!s.where.empty()) object["where"] = s.where;
  if (!s.overridden.empty()) object["overridden"] = s.overridden;
  return object;
}

ordered_json to_object(const RunFacts& f) {
  ordered_json settings = ordered_json::array(), memory = ordered_json::array();
  for (const RecordedSetting& setting : f.settings) settings.push_back(to_object(setting));
  for (const NamedMemory& entry : f.memory) memory.push_back(to_object(entry));
  ordered_json object{{"program", f.program},         {"model", f.model}, {"device", f.device},   {"ranks", f.ranks},
                      {"total_steps", f.total_steps}, {"time", f.time},   {"settings", settings}, {"memory", memory}};
  if (!f.overlap) return object;
  object["plan"] = {{"step_seconds", f.step_seconds}};
  add(object["plan"], *f.overlap);
  return object;
}

ordered_json to_object(const RunTotals& t) {
  ordered_json object{{"steps", t.steps},
                      {"first_step", t.first_step},
                      {"last_step", t.last_step},
                      {"tokens", t.tokens},
                      {"seconds", t.seconds},
                      {"measured_steps", t.measured_steps},
                      {"tokens_per_s", t.tokens_per_s},
                      {"first_loss", t.first_loss},
                      {"last_loss", t.last_loss},
                      {"clipped_steps", t.clipped_steps},
                      {"skipped_steps", t.skipped_steps},
                      {"outcome", t.outcome}};
  if (t.overlap) add(object, *t.overlap);
  const auto add_evaluation = [&](const char* name, const std::optional<RunTotals::Evaluation>& e) {
    if (e) object[name] = {{"step", e->step}, {"eval_loss", e->loss}};
  };
  add_evaluation("best_evaluation", t.best_evaluation);
  add_evaluation("last_evaluation", t.last_evaluation);
  return object;
}

}  // namespace

bool has_metrics_line(const std::filesystem::path& output_directory, std::int64_t step, std::string_view key) {
  const std::filesystem::path path = output_directory / "metrics.jsonl";
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  const MappedFile map(path);
  std::string_view rest = map.text();
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    const auto object = json_tree(line);
    if (object.is_object() && object.contains(key) && object.contains("step") && object["step"] == step) return true;
    if (end == rest.npos) break;
    rest.remove_prefix(end + 1);
  }
  return false;
}

MetricsLog::MetricsLog(const std::filesystem::path& output_directory)
    : lines_(output_directory / "metrics.jsonl", "metrics") {}

void MetricsLog::start(std::int64_t step, const RunFacts& facts) {
  lines_.append(line_of({{"step", step}, {"start", to_object(facts)}}));
}

void MetricsLog::step(const StepMetrics& m) {
  ordered_json object{{"step", m.step},
                      {"epoch", m.epoch},
                      {"loss", m.loss},
                      {"grad_norm", m.grad_norm},
                      {"clip", m.clip},
                      {"lr", m.lr},
                      {"tokens", m.tokens},
                      {"step_time_s", m.step_time_s},
                      {"tokens_per_s", m.tokens_per_s},
                      {"model_tflops", m.model_tflops},
                      {"reference_tflops", m.reference_tflops},
                      {"host_memory_bytes", m.host_memory_bytes},
                      {"device_memory_bytes", m.device_memory_bytes}};
  add(object, m.overlap);
  if (m.skipped) {
    object["skipped"] = true;
    object["skipped_tensor"] = m.skipped_tensor;
    object["skipped_origin"] = m.skipped_origin;
  }
  lines_.append(line_of(object));
}

void MetricsLog::evaluation(std::int64_t step, double loss) {
  lines_.append(line_of({{"step", step}, {"eval_loss", loss}}));
}

void MetricsLog::samples(std::int64_t step, const SampleTotals& totals) {
  lines_.append(line_of({{"step", step},
                         {"samples", totals.samples},
                         {"sample_tokens", totals.tokens},
                         {"sample_seconds", totals.seconds}}));
}

void MetricsLog::summary(std::int64_t step, std::span<const PlannedFigure> figures, const RunTotals& totals,
                         std::span<const NamedMemory> memory) {
  ordered_json by_name = ordered_json::object();
  for (const PlannedFigure& f : figures)
    by_name[f.name] = {{"planned", f.planned}, {"measured", f.measured}, {"difference", f.difference()}};
  ordered_json line{{"step", step}, {"summary", by_name}};
  if (totals.steps > 0) line["run"] = to_object(totals);
  for (const NamedMemory& entry : memory) {
    ordered_json object = to_object(entry);
    object["measured"] = entry.measured ? ordered_json(*entry.measured) : ordered_json();
    line["memory"].push_back(object);
  }
  lines_.append(line_of(line));
}

}  // namespace so
