#include "options/deepspeed_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "options/hjson.h"

namespace so {
namespace {

using json = nlohmann::json;

// The keys by which another program's file is known, and what to give instead.
struct ForeignFile {
  std::string_view program, advice;
  std::vector<std::string_view> keys;
};

const std::vector<ForeignFile>& foreign_files() {
  static const std::vector<ForeignFile> files = {
      {"Accelerate",
       "give the DeepSpeed file that it names as deepspeed_config_file; what is in its own deepspeed_config section are "
       "options here, as gradient_accumulation_steps",
       {"compute_environment", "distributed_type", "deepspeed_config", "deepspeed_config_file", "downcast_bf16",
        "fsdp_config", "machine_rank", "main_training_function", "num_machines", "num_processes", "mixed_precision"}},
      {"axolotl",
       "give the DeepSpeed file that it names as deepspeed; docs/from-trl-or-axolotl.md says what its other keys are here",
       {"base_model", "sequence_len", "micro_batch_size", "datasets", "dataset_prepared_path", "sample_packing",
        "num_epochs"}},
      {"a trainer",
       "give the DeepSpeed file that it names as deepspeed; docs/from-trl-or-axolotl.md says what its other keys are here",
       {"model_name_or_path", "dataset_name", "per_device_train_batch_size", "finetuning_type", "cutoff_len"}},
      {"this program's options", "give it as --config", {"model", "data", "output_dir"}},
  };
  return files;
}

// The names at the beginning of lines, as YAML has them.
std::vector<std::string_view> line_names(std::string_view text) {
  std::vector<std::string_view> names;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    const std::size_t stop = std::min(line.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789"), line.size());
    if (stop > 0 && line.substr(stop, 1) == ":") names.push_back(line.substr(0, stop));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return names;
}

}  // namespace

void refuse_foreign_file(std::string_view key, std::string_view name) {
  for (const ForeignFile& file : foreign_files())
    if (std::find(file.keys.begin(), file.keys.end(), key) != file.keys.end())
      fail("{}: {} is a key of {}, not of DeepSpeed; {}", name, key, file.program, file.advice);
}

nlohmann::json parse_deepspeed(std::string_view text, std::string_view name) {
  if (text.size() > max_deepspeed_bytes)
    fail("{}: larger than {} bytes: this is no DeepSpeed configuration", name, max_deepspeed_bytes);
  json config;
  try {
    config = parse_hjson(text, name);
  } catch (const Error&) {
    for (const std::string_view key : line_names(text)) refuse_foreign_file(key, name);
    throw;
  }
  if (!config.is_object()) fail("{}: must be a JSON object, is {}", name, config.type_name());
  for (const auto& [key, value] : config.items()) refuse_foreign_file(key, name);
  return config;
}

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 80) + "...";
  return text;
}

std::string_view kind_text(JsonKind kind) {
  switch (kind) {
    case JsonKind::boolean:
      return "true or false";
    case JsonKind::integer:
      return "a whole number";
    case JsonKind::number:
      return "a number";
    case JsonKind::text:
      return "a text";
    case JsonKind::list:
      return "a list";
    case JsonKind::object:
      return "an object";
    case JsonKind::any:
      return "anything";
  }
  return {};
}

bool is_kind(const json& value, JsonKind kind) {
  switch (kind) {
    case JsonKind::boolean:
      return value.is_boolean();
    case JsonKind::integer:
      if (value.is_number_float()) return value.get<double>() == std::floor(value.get<double>());  // 4e8
      return value.is_number();
    case JsonKind::number:
      return value.is_number();
    case JsonKind::text:
      return value.is_string();
    case JsonKind::list:
      return value.is_array();
    case JsonKind::object:
      return value.is_object();
    case JsonKind::any:
      return true;
  }
  return false;
}

bool is_unset(const json& value) { return value.is_null() || value == "auto"; }

}  // namespace so
