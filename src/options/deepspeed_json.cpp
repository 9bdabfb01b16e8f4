#include "options/deepspeed_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"

namespace so {
namespace {

using json = nlohmann::json;

constexpr int max_depth = 32;

struct Position {
  std::size_t line = 1, column = 1;
};

Position position_of(std::string_view text, std::size_t offset) {
  Position p;
  for (const char c : text.substr(0, offset)) {
    if (c == '\n')
      p = {p.line + 1, 1};
    else
      ++p.column;
  }
  return p;
}

// Comments become spaces, so that offsets stay those of the file. Text in strings is left alone.
std::string without_comments(std::string_view text, std::string_view name) {
  std::string out(text);
  const auto blank = [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i)
      if (out[i] != '\n') out[i] = ' ';
  };
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '"') {
      for (++i; i < text.size() && text[i] != '"'; ++i)
        if (text[i] == '\\') ++i;
      ++i;
    } else if (text[i] == '#' || text.substr(i, 2) == "//") {
      const std::size_t end = std::min(text.find('\n', i), text.size());
      blank(i, end);
      i = end;
    } else if (text.substr(i, 2) == "/*") {
      const std::size_t close = text.find("*/", i + 2);
      if (close == std::string_view::npos) {
        const Position p = position_of(text, i);
        fail("{}:{}:{}: this comment has no end; add */", name, p.line, p.column);
      }
      blank(i, close + 2);
      i = close + 2;
    } else {
      ++i;
    }
  }
  return out;
}

// nlohmann's message without its preamble, which differs between versions.
std::string syntax_detail(std::string text) {
  if (const std::size_t at = text.find("syntax error"); at != std::string::npos)
    text.erase(0, at);
  else if (const std::size_t bracket = text.find("] "); bracket != std::string::npos)
    text.erase(0, bracket + 2);
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  if (text.size() > 160) text = text.substr(0, 160) + "...";
  return text;
}

// Refuses keys given twice, of which the parser would silently drop one, and nesting that no configuration has.
class StructureCheck {
 public:
  explicit StructureCheck(std::string_view name) : name_(name) {}

  bool operator()(int depth, json::parse_event_t event, const json& value) {
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      if (depth >= max_depth) fail("{}: nested deeper than {} levels", name_, max_depth);
    }
    if (event == json::parse_event_t::object_start) keys_.emplace_back();
    if (event == json::parse_event_t::object_end) keys_.pop_back();
    if (event == json::parse_event_t::key) {
      const std::string& key = value.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) fail("{}: key {} is given twice in one object", name_, in_quotes(key));
    }
    return true;
  }

 private:
  std::string_view name_;
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

nlohmann::json parse_deepspeed(std::string_view text, std::string_view name) {
  if (text.size() > max_deepspeed_bytes)
    fail("{}: larger than {} bytes: this is no DeepSpeed configuration", name, max_deepspeed_bytes);
  const std::string uncommented = without_comments(text, name);
  const std::string plain = with_plain_numbers(uncommented).value_or(uncommented);
  try {
    StructureCheck check(name);
    json config = json::parse(plain.begin(), plain.end(), [&](int depth, json::parse_event_t event, json& value) {
      return check(depth, event, value);
    });
    if (!config.is_object()) fail("{}: must be a JSON object, is {}", name, config.type_name());
    return config;
  } catch (const json::parse_error& error) {
    const Position p = position_of(plain, error.byte == 0 ? 0 : error.byte - 1);
    fail("{}:{}:{}: not valid JSON: {}", name, p.line, p.column, syntax_detail(error.what()));
  } catch (const json::exception& error) {
    fail("{}: not valid JSON: {}", name, syntax_detail(error.what()));
  }
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
