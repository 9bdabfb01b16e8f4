#include "io/presets.h"

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"

namespace so {

std::string names_of(std::span<const Preset> presets) {
  std::string names;
  for (const Preset& preset : presets) names += fmt::format("{}{}", names.empty() ? "" : ", ", preset.name);
  return names;
}

ModelConfig resolve_config(const std::string& name_or_path) {
  std::filesystem::path path = name_or_path;
  if (is_directory_path(path)) path /= "config.json";
  if (path_exists(path)) {
    constexpr std::uint64_t most_bytes = 16 << 20;
    return {read_text_file(path, most_bytes), path.string()};
  }
  for (const Preset& preset : model_presets())
    if (preset.name == name_or_path) return {std::string(preset.json), fmt::format("preset {}", preset.name)};
  fail("{}: no such file, and no preset of that name; the presets are {}", printable_path(path),
       names_of(model_presets()));
}

}  // namespace so
