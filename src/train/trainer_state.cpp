#include "train/trainer_state.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <system_error>

#include "base/error.h"
#include "base/file.h"

namespace so {

namespace {
constexpr int format_version = 1;
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
  j["data_key"] = fmt::format("{:016x}", state.data_key);
  j["options"] = nlohmann::ordered_json::parse(state.options);
  return j.dump(2) + "\n";
}

TrainerState read_trainer_state(const std::filesystem::path& file) {
  const std::string text = read_text_file(file, 1 << 20);
  try {
    const auto j = nlohmann::ordered_json::parse(text);
    if (j.at("format").get<int>() != format_version)
      fail("{}: format {} is not known to this version of the program", file.string(), j.at("format").dump());
    TrainerState state;
    state.step = j.at("global_step").get<std::int64_t>();
    state.updates = j.at("updates").get<std::int64_t>();
    state.sampler.epoch = j.at("epoch").get<std::int64_t>();
    state.sampler.position = j.at("epoch_position").get<std::int64_t>();
    state.tokens = j.at("tokens").get<std::int64_t>();
    state.warmup_steps = j.value("warmup_steps", std::int64_t{-1});
    const auto key = j.at("data_key").get<std::string>();
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), state.data_key, 16);
    if (error != std::errc() || end != key.data() + key.size())
      fail("{}: data_key: expected hexadecimal digits of 64 bits", file.string());
    state.options = j.at("options").dump();
    if (state.step < 0 || state.updates < 0 || state.updates > state.step)
      fail("{}: impossible global_step {} with updates {}", file.string(), state.step, state.updates);
    if (state.sampler.epoch < 0 || state.sampler.position < 0 || state.tokens < 0)
      fail("{}: epoch, epoch_position and tokens must not be negative", file.string());
    return state;
  } catch (const nlohmann::json::exception& error) {
    fail("{}: not a trainer state: {}", file.string(), error.what());
  }
}

}  // namespace so
