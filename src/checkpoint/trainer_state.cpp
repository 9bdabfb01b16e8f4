#include "checkpoint/trainer_state.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "base/file.h"

namespace so {

namespace {

constexpr int format_version = 1;
constexpr int deepest = 32;  // of what the options' values may be nested; what writes JSON recurses

using Json = nlohmann::ordered_json;

std::int64_t integer(const Json& j, const char* key, const std::string& source) {
  const Json& value = j.at(key);
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)))
    fail("{}: {} is {}; expected an integer of 64 bits", source, key, printable(value.dump(), 40));
  return value.get<std::int64_t>();
}

std::uint64_t hexadecimal(const Json& j, const char* key, const std::string& source) {
  const auto text = j.at(key).get<std::string>();
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size())
    fail("{}: {}: expected hexadecimal digits of 64 bits", source, key);
  return value;
}

// The best one's keys are those of transformers' trainer_state.json.
void add_to(Json& j, const EvaluationHistory& e) {
  if (e.best_loss) j["best_metric"] = *e.best_loss;
  j["best_global_step"] = e.best_step;
  j["evaluations_without_gain"] = e.without_gain;
  j["last_evaluated_step"] = e.last_step;
  j["evaluation_data_key"] = fmt::format("{:016x}", e.data_key);
}

EvaluationHistory history_in(const Json& j, std::int64_t step, const std::string& source) {
  EvaluationHistory e;
  if (j.contains("best_metric")) {
    const Json& best = j.at("best_metric");
    if (!best.is_number()) fail("{}: best_metric is {}; expected a number", source, printable(best.dump(), 40));
    e.best_loss = best.get<double>();
  }
  e.best_step = integer(j, "best_global_step", source);
  e.without_gain = integer(j, "evaluations_without_gain", source);
  e.last_step = integer(j, "last_evaluated_step", source);
  e.data_key = hexadecimal(j, "evaluation_data_key", source);
  const bool best_fits = e.best_step >= 0 && e.best_step <= e.last_step && (e.best_step == 0 || e.best_loss);
  if (!best_fits || e.last_step > step || e.without_gain < 0 || e.without_gain > e.last_step)
    fail(
        "{}: impossible evaluations at global_step {}: best_global_step {}, last_evaluated_step {}, "
        "evaluations_without_gain {}",
        source, step, e.best_step, e.last_step, e.without_gain);
  return e;
}

}  // namespace

bool EvaluationHistory::count(std::int64_t step, double loss, double threshold) {
  const double before = best_loss.value_or(std::numeric_limits<double>::infinity());
  const bool better = loss < before;
  const bool gain = last_step == 0 || (better && std::abs(loss - before) > threshold);
  without_gain = gain ? 0 : without_gain + 1;
  last_step = step;
  if (!better) return false;
  best_loss = loss;
  best_step = step;
  return true;
}

std::string to_json(const TrainerState& state) {
  nlohmann::ordered_json j;
  j["format"] = format_version;
  j["global_step"] = state.step;
  j["updates"] = state.updates;
  j["epoch"] = state.sampler.epoch;
  j["epoch_position"] = state.sampler.position;
  j["tokens"] = state.tokens;
  if (state.warmup_steps >= 0) j["warmup_steps"] = state.warmup_steps;
  j["skipped_in_a_row"] = state.skipped_in_a_row;
  if (state.evaluations) add_to(j, *state.evaluations);
  if (state.only_model) j["only_model"] = true;
  j["data_key"] = fmt::format("{:016x}", state.data_key);
  j["options"] = nlohmann::ordered_json::parse(state.options);
  return j.dump(2) + "\n";
}

TrainerState parse_trainer_state(std::string_view text, const std::string& source) {
  const auto refuse_depth = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > deepest) fail("{}: not a trainer state: values are nested more than {} deep", source, deepest);
    return true;
  };
  try {
    const auto j = Json::parse(text, refuse_depth);
    if (!j.is_object()) fail("{}: not a trainer state: no object", source);
    if (integer(j, "format", source) != format_version)
      fail("{}: format {} is not known to this version of the program", source, j.at("format").dump());
    TrainerState state;
    state.step = integer(j, "global_step", source);
    state.updates = integer(j, "updates", source);
    state.sampler.epoch = integer(j, "epoch", source);
    state.sampler.position = integer(j, "epoch_position", source);
    state.tokens = integer(j, "tokens", source);
    if (j.contains("warmup_steps")) state.warmup_steps = integer(j, "warmup_steps", source);
    if (j.contains("skipped_in_a_row")) state.skipped_in_a_row = integer(j, "skipped_in_a_row", source);
    state.data_key = hexadecimal(j, "data_key", source);
    if (j.contains("best_global_step")) state.evaluations = history_in(j, state.step, source);
    if (j.contains("only_model")) state.only_model = j.at("only_model").get<bool>();
    state.options = j.at("options").dump();
    if (state.step < 0 || state.updates < 0 || state.updates > state.step)
      fail("{}: impossible global_step {} with updates {}", source, state.step, state.updates);
    if (state.warmup_steps < -1) fail("{}: impossible warmup_steps {}", source, state.warmup_steps);
    if (state.skipped_in_a_row < 0 || state.skipped_in_a_row > state.skipped())
      fail("{}: impossible skipped_in_a_row {} of {} skipped steps", source, state.skipped_in_a_row, state.skipped());
    if (state.sampler.epoch < 0 || state.sampler.position < 0 || state.tokens < 0)
      fail("{}: epoch, epoch_position and tokens must not be negative", source);
    return state;
  } catch (const nlohmann::json::exception& error) {
    fail("{}: not a trainer state: {}", source, error.what());
  }
}

TrainerState read_trainer_state(const std::filesystem::path& file) {
  return parse_trainer_state(read_text_file(file, 1 << 20), file.string());
}

}  // namespace so
