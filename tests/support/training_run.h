// The command line of a training run on a fixture, and what it leaves behind.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/on_gpu.h"
#include "support/paths.h"
#include "support/safetensors_reader.h"

namespace so::test {

inline std::filesystem::path model_fixture(const std::string& name) {
  return std::filesystem::path(test::fixtures()) / "models" / name;
}

inline nlohmann::json read_json(const std::filesystem::path& path) { return nlohmann::json::parse(read_file(path)); }

// superoffload train with the options that every run of a fixture shares; later ones are appended by name.
class TrainCommand {
 public:
  TrainCommand(const std::filesystem::path& model, const std::filesystem::path& data,
               const std::filesystem::path& output) {
    set("model", model.string()).set("data", data.string()).set("output_dir", output.string());
    set("dtype", "fp32").set("device", on_gpu() ? "cuda" : "cpu").set("shuffle", "false").set("seed", "1");
  }
  TrainCommand& set(const std::string& name, const std::string& value) {
    options_[name] = value;
    return *this;
  }
  TrainCommand& set(const nlohmann::json& options) {
    for (const auto& [name, value] : options.items()) set(name, value.get<std::string>());
    return *this;
  }
  TrainCommand& without(const std::string& name) {
    options_.erase(name);
    return *this;
  }
  TrainCommand& flag(const std::string& name) {
    flags_.push_back(name);
    return *this;
  }
  std::vector<std::string> words() const {
    std::vector<std::string> all{test::binary(), "train"};
    // By itself a GPU would own all of a fixture's state, and the host's side would go untested there.
    if (on_gpu() && !options_.contains("offload_ratio") && !options_.contains("offload_optimizer"))
      all.insert(all.end(), {"--offload_ratio", "1"});
    for (const auto& [name, value] : options_) {
      all.push_back("--" + name);
      all.push_back(value);
    }
    for (const auto& name : flags_) all.push_back("--" + name);
    return all;
  }

 private:
  std::map<std::string, std::string> options_;
  std::vector<std::string> flags_;
};

// The lines of OUT/metrics.jsonl, of steps and evaluations, or, with `summaries`, those that compare a run with its
// plan.
inline std::vector<nlohmann::json> read_metrics(const std::filesystem::path& output, bool summaries = false) {
  std::vector<nlohmann::json> lines;
  std::istringstream in(read_file(output / "metrics.jsonl"));
  for (std::string line; std::getline(in, line);) {
    nlohmann::json parsed = nlohmann::json::parse(line);
    if (parsed.contains("start")) continue;
    if (parsed.contains("summary") == summaries) lines.push_back(std::move(parsed));
  }
  return lines;
}

// How many steps OUT/metrics.jsonl has so far; the file may be absent, and is being written.
inline std::ptrdiff_t steps_recorded(const std::filesystem::path& output) {
  if (!std::filesystem::exists(output / "metrics.jsonl")) return 0;
  const std::string text = read_file(output / "metrics.jsonl");
  std::ptrdiff_t steps = 0;
  for (std::size_t at = text.find("\"loss\":"); at != text.npos; at = text.find("\"loss\":", at + 1))
    steps += text.find('\n', at) != text.npos;
  return steps;
}

}  // namespace so::test
