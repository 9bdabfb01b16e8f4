#include "model/config.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_text.h"

namespace so {

using nlohmann::json;

namespace {

// All arithmetic with a number will be fp32, where it must neither vanish nor be infinite. NaN and infinities of a file
// come as numbers beyond this range (base/json_text.h).
constexpr double smallest = std::numeric_limits<float>::min(), largest = std::numeric_limits<float>::max();

std::string outside_fp32(double value) { return fmt::format("{} is outside the range of fp32", value); }

}  // namespace

struct ConfigReader::Node {
  json value;
  std::string origin, prefix;  // prefix: "rope_scaling." inside a nested object
};

ConfigReader::ConfigReader(std::string_view given, std::string origin) {
  const auto plain = with_plain_numbers(given);
  const std::string_view text = plain ? std::string_view(*plain) : given;
  auto node = std::make_shared<Node>();
  node->origin = printable_path(origin);
  try {
    // A callback that bounds the depth: the parser itself would follow a hostile file as deep as it goes.
    node->value = json::parse(text, [&](int depth, json::parse_event_t, json&) {
      if (depth > 32) fail("{}: nested more than 32 deep", node->origin);
      return true;
    });
  } catch (const json::parse_error& error) {
    const auto upto = text.substr(0, std::min<std::size_t>(error.byte, text.size()));
    const auto line = 1 + std::count(upto.begin(), upto.end(), '\n');
    fail("{}:{}: not valid JSON", node->origin, line);
  } catch (const json::exception& error) {
    fail("{}: not valid JSON", node->origin);
  }
  if (!node->value.is_object()) fail("{}: expected a JSON object", node->origin);
  node_ = std::move(node);
}

void ConfigReader::refuse(std::string_view key, std::string_view why) const {
  fail("{}: {}{}: {}", node_->origin, node_->prefix, key, why);
}

bool ConfigReader::has(std::string_view key) const {
  const auto it = node_->value.find(key);
  return it != node_->value.end() && !it->is_null();
}

std::int64_t ConfigReader::positive_int(std::string_view key) const {
  if (!has(key)) refuse(key, "missing");
  const json& v = *node_->value.find(key);
  // Token ids and positions are 32-bit.
  constexpr std::int64_t limit = std::numeric_limits<std::int32_t>::max();
  if (!v.is_number_unsigned() || v.get<std::uint64_t>() == 0) refuse(key, "expected a positive whole number");
  if (v.get<std::uint64_t>() > static_cast<std::uint64_t>(limit))
    refuse(key, fmt::format("expected at most {}", limit));
  return v.get<std::int64_t>();
}

std::int64_t ConfigReader::positive_int(std::string_view key, std::int64_t fallback) const {
  return has(key) ? positive_int(key) : fallback;
}

double ConfigReader::positive_number(std::string_view key) const {
  if (!has(key)) refuse(key, "missing");
  const json& v = *node_->value.find(key);
  if (!v.is_number() || !(v.get<double>() > 0)) refuse(key, "expected a positive number");
  const double value = v.get<double>();
  if (value < smallest || value > largest) refuse(key, outside_fp32(value));
  return value;
}

double ConfigReader::positive_number(std::string_view key, double fallback) const {
  return has(key) ? positive_number(key) : fallback;
}

bool ConfigReader::boolean(std::string_view key, bool fallback) const {
  if (!has(key)) return fallback;
  const json& v = *node_->value.find(key);
  if (!v.is_boolean()) refuse(key, "expected true or false");
  return v.get<bool>();
}

std::string ConfigReader::text(std::string_view key, std::string_view fallback) const {
  if (!has(key)) return std::string(fallback);
  const json& v = *node_->value.find(key);
  if (!v.is_string()) refuse(key, "expected a string");
  return v.get<std::string>();
}

std::vector<std::string> ConfigReader::texts(std::string_view key) const {
  std::vector<std::string> result;
  if (!has(key)) return result;
  const json& v = *node_->value.find(key);
  if (!v.is_array()) refuse(key, "expected a list of strings");
  for (const json& item : v) {
    if (!item.is_string()) refuse(key, "expected a list of strings");
    result.push_back(item.get<std::string>());
  }
  return result;
}

std::int64_t ConfigReader::whole_number(std::string_view key, std::int64_t fallback) const {
  if (!has(key)) return fallback;
  const json& v = *node_->value.find(key);
  return v.is_number_unsigned() && v.get<std::uint64_t>() == 0 ? 0 : positive_int(key);
}

double ConfigReader::number(std::string_view key, double fallback) const {
  if (!has(key)) return fallback;
  const json& v = *node_->value.find(key);
  if (!v.is_number() || !(v.get<double>() >= 0)) refuse(key, "expected a number of 0 or more");
  if (v.get<double>() > largest) refuse(key, outside_fp32(v.get<double>()));
  return v.get<double>();
}

std::vector<std::int64_t> ConfigReader::whole_numbers(std::string_view key) const {
  std::vector<std::int64_t> result;
  if (!has(key)) return result;
  const json& v = *node_->value.find(key);
  if (!v.is_array()) refuse(key, "expected a list of whole numbers");
  for (const json& item : v) {
    if (!item.is_number_integer()) refuse(key, "expected a list of whole numbers");
    result.push_back(item.get<std::int64_t>());
  }
  return result;
}

std::vector<double> ConfigReader::positive_numbers(std::string_view key) const {
  std::vector<double> result;
  if (!has(key)) return result;
  const json& v = *node_->value.find(key);
  if (!v.is_array()) refuse(key, "expected a list of positive numbers");
  for (const json& item : v) {
    if (!item.is_number() || !(item.get<double>() > 0)) refuse(key, "expected a list of positive numbers");
    if (item.get<double>() > largest) refuse(key, outside_fp32(item.get<double>()));
    result.push_back(item.get<double>());
  }
  return result;
}

bool ConfigReader::is_null(std::string_view key) const {
  const auto it = node_->value.find(key);
  return it != node_->value.end() && it->is_null();
}

std::vector<std::string> ConfigReader::keys() const {
  std::vector<std::string> all;
  for (const auto& [key, value] : node_->value.items()) all.push_back(key);
  return all;
}

std::optional<ConfigReader> ConfigReader::object(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  const json& v = *node_->value.find(key);
  if (!v.is_object()) refuse(key, "expected an object");
  auto node = std::make_shared<Node>(Node{v, node_->origin, fmt::format("{}{}.", node_->prefix, key)});
  return ConfigReader(std::move(node));
}

void ConfigReader::only_zero(std::string_view key, std::string_view why) const {
  if (!has(key)) return;
  const json& v = *node_->value.find(key);
  if (!v.is_number() || v.get<double>() != 0) refuse(key, why);
}

void ConfigReader::only(std::string_view key, std::string_view allowed) const {
  const std::string value = text(key, allowed);
  if (value != allowed) refuse(key, fmt::format("'{}' is not supported, only '{}'", printable(value), allowed));
}

}  // namespace so
