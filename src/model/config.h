// Reading a Hugging Face config.json: typed access that names the file and key in every complaint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/spec.h"

namespace so {

// One JSON object. Copies share the document.
class ConfigReader {
 public:
  // `origin` is what errors name, normally the file's path. Throws Error when `text` is not a JSON object.
  ConfigReader(std::string_view text, std::string origin);

  bool has(std::string_view key) const;  // present and not null
  std::int64_t positive_int(std::string_view key) const;
  std::int64_t positive_int(std::string_view key, std::int64_t fallback) const;
  double positive_number(std::string_view key) const;
  double positive_number(std::string_view key, double fallback) const;
  bool boolean(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::string_view fallback) const;
  std::int64_t whole_number(std::string_view key, std::int64_t fallback) const;  // at least 0
  double number(std::string_view key, double fallback) const;                    // finite, at least 0
  std::vector<std::string> texts(std::string_view key) const;                    // empty when absent, as the next two
  std::vector<std::int64_t> whole_numbers(std::string_view key) const;
  std::vector<double> positive_numbers(std::string_view key) const;
  bool is_null(std::string_view key) const;  // present, and null
  std::vector<std::string> keys() const;     // of the object
  std::optional<ConfigReader> object(std::string_view key) const;
  // Refuses a number other than 0 (absence is fine).
  void only_zero(std::string_view key, std::string_view why) const;
  // Refuses any value but `allowed` (absence is fine): "config.json: hidden_act is 'gelu'; only 'silu' is supported".
  void only(std::string_view key, std::string_view allowed) const;

  [[noreturn]] void refuse(std::string_view key, std::string_view why) const;

 private:
  struct Node;
  explicit ConfigReader(std::shared_ptr<const Node> node) : node_(std::move(node)) {}
  std::shared_ptr<const Node> node_;
};

// Returns the text model's part of a config.json: all of it, or text_config where the class holds more than text.
// Throws Error if that is missing.
ConfigReader text_part(const ConfigReader& config);

// The spec of a model from its config.json; of a class that holds more than text, that of its text model. Throws Error
// for an unknown architecture or a value that is not supported.
DecoderSpec read_decoder_spec(std::string_view config_text, const std::string& origin);
DecoderSpec read_decoder_spec(const std::filesystem::path& config_file);

}  // namespace so
