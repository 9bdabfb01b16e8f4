// Published descriptions of models and machines, compiled into the program from configs/, so that a name works wherever
// the binary is: config.json files for commands that need a model's shape but none of its weights, and hardware files
// (plan/machine/hardware.h) for plans of machines that are not there.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace so {

struct Preset {
  std::string_view name;  // "qwen3-14b", "h200"
  std::string_view json;  // the file's text
};
std::span<const Preset> model_presets();     // configs/models, sorted by name
std::span<const Preset> hardware_presets();  // configs/hardware, sorted by name

// "gpt-oss-20b, llama-3.1-8b, ...", for help and messages.
std::string names_of(std::span<const Preset> presets);

// The text of a config.json, and what messages call it.
struct ModelConfig {
  std::string text;
  std::string origin;
};

// `name_or_path` is a config.json, a directory that has one, or the name of a preset; what exists in the file system
// wins. Throws Error, listing the presets, if it is none of them.
ModelConfig resolve_config(const std::string& name_or_path);

}  // namespace so
