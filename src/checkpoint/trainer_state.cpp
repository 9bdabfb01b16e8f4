#include "checkpoint/trainer_state.h"

#include <charconv>
#include <cstdint>
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

}  // namespace

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
    const auto key = j.at("data_key").get<std::string>();
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), state.data_key, 16);
    if (error != std::errc() || end != key.data() + key.size())
      fail("{}: data_key: expected hexadecimal digits of 64 bits", source);
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
