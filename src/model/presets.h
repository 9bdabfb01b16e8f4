// config.json of published models, compiled into the program (from configs/models/), for commands that need a model's
// shape but none of its weights.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace so {

struct Preset {
  std::string_view name;    // "qwen3-14b"
  std::string_view config;  // the publisher's config.json
};
std::span<const Preset> presets();  // sorted by name

// The text of a config.json, and what messages call it.
struct ModelConfig {
  std::string text;
  std::string origin;
};

// `name_or_path` is a config.json, a directory that has one, or the name of a preset; what exists in the file system
// wins. Throws Error, listing the presets, if it is none of them.
ModelConfig resolve_config(const std::string& name_or_path);

// "gpt-oss-20b, llama-3.1-8b, ...", for help and messages.
std::string preset_names();

}  // namespace so
