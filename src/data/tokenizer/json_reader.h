// Checked access to parsed JSON: every mistake becomes one Error with file and key. For .cpp files only.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json_text.h"

namespace so {

using JsonElement = simdjson::dom::element;
using JsonObject = simdjson::dom::object;
using JsonArray = simdjson::dom::array;

// A value and where it stands ("model.merges" of "DIR/tokenizer.json").
class JsonNode {
 public:
  JsonNode(JsonElement element, const std::string& file, std::string key)
      : element_(element), file_(&file), key_(std::move(key)) {}

  std::string where() const { return key_.empty() ? *file_ : *file_ + ": " + key_; }
  const std::string& file() const { return *file_; }

  JsonElement element() const { return element_; }
  bool is_null() const { return element_.is_null(); }
  bool is_object() const { return element_.is_object(); }
  bool is_array() const { return element_.is_array(); }
  bool is_string() const { return element_.is_string(); }
  bool is_bool() const { return element_.is_bool(); }

  JsonObject object() const { return get<JsonObject>("an object"); }
  JsonArray array() const { return get<JsonArray>("an array"); }
  std::string_view string() const {
    const auto text = get<std::string_view>("a string");
    if (text.find(half_pair) != std::string_view::npos)
      fail("{} holds half of a surrogate pair (\\ud800 to \\udfff); remove it", where());
    return text;
  }
  bool boolean() const { return get<bool>("true or false"); }
  double number() const {
    double value = 0;
    if (element_.get(value)) fail("{} must be a number", where());
    return value;
  }
  std::int32_t id(std::int32_t limit) const {
    std::int64_t value = 0;
    if (element_.get(value) || value < 0 || value >= limit) fail("{} must be an integer in [0, {})", where(), limit);
    return static_cast<std::int32_t>(value);
  }

  // Nothing if the key is absent; null counts as present.
  std::optional<JsonNode> find(std::string_view key) const {
    std::optional<JsonElement> found;
    for (const auto field : object())
      if (field.key == key) found = field.value;  // of a key given twice the last counts, as in Python
    if (!found) return std::nullopt;
    return JsonNode(*found, *file_, child(key));
  }
  JsonNode at(std::string_view key) const {
    const auto found = find(key);
    if (!found) fail("{}: the key \"{}\" is missing{}", *file_, key, key_.empty() ? std::string() : " in " + key_);
    return *found;
  }
  JsonNode element(JsonElement value, std::size_t index) const {
    return JsonNode(value, *file_, key_ + "[" + std::to_string(index) + "]");
  }
  bool flag(std::string_view key, std::optional<bool> when_absent = std::nullopt) const {
    const auto found = find(key);
    if (!found && when_absent) return *when_absent;
    return at(key).boolean();
  }

  // Refuses what this program does not know, since it could change the ids, and keys that occur twice.
  void allow_only(std::initializer_list<std::string_view> keys) const {
    const std::string inside = key_.empty() ? std::string() : " in " + key_;
    std::uint32_t seen = 0;
    for (const auto field : object()) {
      std::uint32_t bit = 1;
      for (auto key = keys.begin(); key != keys.end() && *key != field.key; ++key) bit <<= 1;
      if (bit == std::uint32_t{1} << keys.size())
        fail("{}: the key \"{}\" is not supported{}", *file_, field.key, inside);
      if (seen & bit) fail("{}: the key \"{}\" occurs twice{}", *file_, field.key, inside);
      seen |= bit;
    }
  }

 private:
  std::string child(std::string_view key) const {
    return key_.empty() ? std::string(key) : key_ + "." + std::string(key);
  }
  template <class T>
  T get(const char* what) const {
    T value;
    if (element_.get(value)) fail("{} must be {}", where(), what);
    return value;
  }

  JsonElement element_;
  const std::string* file_;
  std::string key_;
};

// The parser owns what the nodes point to.
inline JsonNode parse_json(simdjson::dom::parser& parser, std::string_view json, const std::string& file) {
  JsonElement root;
  auto error = parser.parse(json.data(), json.size()).get(root);
  if (error) {
    // Only now, since it is rare and the files are large; the parser copies what its nodes point to.
    if (const auto plain = with_plain_numbers(json)) error = parser.parse(*plain).get(root);
  }
  if (error) fail("{}{}", file, json_fault(json, fmt::format("not valid JSON: {}", simdjson::error_message(error))));
  return JsonNode(root, file, "");
}

}  // namespace so
