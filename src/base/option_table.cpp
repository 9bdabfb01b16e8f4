#include "base/option_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json_tree.h"
#include "base/quantities.h"

namespace so {
namespace {

using json = nlohmann::json;

constexpr double int64_limit = 9223372036854775808.0;  // 2^63, the first double above every std::int64_t

std::optional<double> number_of(const OptionValue& value) {
  if (const auto* i = std::get_if<std::int64_t>(&value)) return static_cast<double>(*i);
  if (const auto* d = std::get_if<double>(&value)) return *d;
  return std::nullopt;
}

json json_of(const OptionValue& value) {
  return std::visit([](const auto& v) { return json(v); }, value);
}

bool in_range(const OptionSpec& spec, double number) {
  const bool above = spec.lower_open ? number > spec.lower : number >= spec.lower;
  const bool below = spec.upper_open ? number < spec.upper : number <= spec.upper;
  return above && below;
}

void check_choice(const OptionSpec& spec, const std::string& text, std::string_view where) {
  if (std::find(spec.choices.begin(), spec.choices.end(), text) != spec.choices.end()) return;
  std::string near = nearest_name(text, spec.choices);
  for (const auto& [foreign, here] : spec.foreign_values)
    if (foreign == text) near = here;
  fail("{}: {} is not one of {}{}", where, in_quotes(text), fmt::join(spec.choices, ", "),
       near.empty() ? "" : fmt::format("; did you mean {}?", near));
}

}  // namespace

OptionSpec& OptionRows::append(OptionSpec spec) {
  SO_CHECK(find(spec.name) == nullptr, "option {} declared twice", spec.name);
  spec.group = group_;
  return specs_.emplace_back(std::move(spec));
}

const OptionSpec* OptionRows::find(std::string_view name) const {
  const auto it = std::find_if(specs_.begin(), specs_.end(), [&](const OptionSpec& s) { return s.name == name; });
  return it == specs_.end() ? nullptr : &*it;
}

const OptionSpec* OptionRows::find_given(std::string_view name) const {
  if (const OptionSpec* spec = find(name)) return spec;
  const auto it = std::find_if(specs_.begin(), specs_.end(), [&](const OptionSpec& s) {
    return std::find(s.aliases.begin(), s.aliases.end(), name) != s.aliases.end();
  });
  return it == specs_.end() ? nullptr : &*it;
}

const OptionSpec& OptionRows::at(std::string_view name) const {
  const OptionSpec* spec = find(name);
  SO_CHECK(spec != nullptr, "no option {}", name);
  return *spec;
}

OptionSpec& OptionRows::row(std::string_view name) {
  const auto it = std::find_if(specs_.begin(), specs_.end(), [&](const OptionSpec& s) { return s.name == name; });
  SO_CHECK(it != specs_.end(), "no option {}", name);
  return *it;
}

std::string_view name_of(Origin origin) {
  switch (origin) {
    case Origin::built_in:
      return "default";
    case Origin::file:
      return "file";
    case Origin::run_file:
      return "run file";
    case Origin::command_line:
      return "command line";
  }
  SO_BUG("origin {}", static_cast<int>(origin));
}

const OptionOrigin& OptionOrigins::of(std::string_view name) const {
  static const OptionOrigin untouched;
  const auto it = entries_.find(name);
  return it == entries_.end() ? untouched : it->second;
}

OptionOrigin& OptionOrigins::operator[](std::string_view name) { return entries_[std::string(name)]; }

std::string to_string(const OptionValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return std::to_string(*integer);
  return fmt::format("{}", std::get<double>(value));
}

OptionValue check_value(const OptionSpec& spec, OptionValue value, std::string_view where) {
  const auto expect = [&](bool right, std::string_view what) {
    if (!right) fail("{}: {} is not {}", where, in_quotes(to_string(value)), what);
  };
  switch (spec.kind) {
    case OptionKind::boolean:
      expect(std::holds_alternative<bool>(value), "true or false");
      return value;
    case OptionKind::text:
      expect(std::holds_alternative<std::string>(value), "a text");
      return value;
    case OptionKind::choice:
      expect(std::holds_alternative<std::string>(value), fmt::format("one of {}", fmt::join(spec.choices, ", ")));
      check_choice(spec, std::get<std::string>(value), where);
      return value;
    case OptionKind::integer: {
      expect(number_of(value).has_value(), "a whole number");
      if (const auto* d = std::get_if<double>(&value)) {
        expect(std::isfinite(*d) && *d == std::floor(*d), "a whole number");
        expect(std::abs(*d) < int64_limit, "a number of 64 bits");
        value = static_cast<std::int64_t>(*d);
      }
      break;
    }
    case OptionKind::real:
      expect(number_of(value).has_value() && std::isfinite(*number_of(value)), "a number");
      value = *number_of(value);
      break;
  }
  if (!in_range(spec, *number_of(value)) && !(spec.special_value && *spec.special_value == value))
    fail("{}: {} is out of range; it must be a {}", where, to_string(value), describe_values(spec));
  return value;
}

OptionValue parse_value(const OptionSpec& spec, std::string_view text, std::string_view where) {
  const auto parse_real = [&]() -> OptionValue {
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number))
      fail("{}: {} is not a {}", where, in_quotes(text), spec.kind == OptionKind::integer ? "whole number" : "number");
    return number;
  };
  switch (spec.kind) {
    case OptionKind::boolean:
      if (text == "true") return true;
      if (text == "false") return false;
      fail("{}: {} is neither true nor false", where, in_quotes(text));
    case OptionKind::integer: {
      std::int64_t number = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      if (error == std::errc() && end == text.data() + text.size()) return check_value(spec, number, where);
      if (spec.value_unit == "bytes") {
        if (const auto bytes = parse_bytes(text)) return check_value(spec, *bytes, where);
        fail("{}: {} is not a number of bytes, as 20GB or 20GiB", where, in_quotes(text));
      }
      return check_value(spec, parse_real(), where);  // 64e6
    }
    case OptionKind::real:
      return check_value(spec, parse_real(), where);
    case OptionKind::text:
    case OptionKind::choice:
      return check_value(spec, std::string(text), where);
  }
  SO_BUG("option kind {}", static_cast<int>(spec.kind));
}

void assign(OptionsRef options, OptionOrigins& origins, const OptionSpec& spec, const OptionValue& value, Origin origin,
            std::string where) {
  OptionOrigin& entry = origins[spec.name];
  const OptionValue current = options.get(spec);
  const auto said_by = [](const OptionValue& v, Origin o, const std::string& w) {
    return fmt::format("{} says {}", w.empty() ? std::string(name_of(o)) : w, to_string(v));
  };
  if (origin < entry.origin) {
    if (current != value) entry.overridden = said_by(value, origin, where);
    return;
  }
  if (entry.origin != Origin::built_in && origin > entry.origin && current != value)
    entry.overridden = said_by(current, entry.origin, entry.where);
  options.set(spec, value);
  entry.origin = origin;
  entry.where = std::move(where);
}

void check_required(OptionsView options) {
  std::vector<std::string> missing;
  for (const OptionSpec& spec : options.rows().specs())
    if (spec.is_required && to_string(options.get(spec)).empty())
      missing.push_back(fmt::format("--{} {}", spec.name, spec.value_name));
  if (!missing.empty()) fail("missing {}", fmt::join(missing, ", "));
}

std::string to_json(OptionsView options) {
  json record = json::object();
  for (const OptionSpec& spec : options.rows().specs()) record[spec.name] = json_of(options.get(spec));
  // Paths may hold bytes that are not UTF-8; they are recorded with U+FFFD, since no path is compared on resume.
  return record.dump(2, ' ', false, json::error_handler_t::replace);
}

std::vector<OptionDifference> result_differences(OptionsView options, std::string_view record, std::string_view where,
                                                 std::span<const std::string_view> more) {
  const json recorded = json_tree(record);
  if (!recorded.is_object()) fail("{}: the record of options is not a JSON object", where);
  std::vector<OptionDifference> differences;
  for (const OptionSpec& spec : options.rows().specs()) {
    if (!spec.changes_results && std::find(more.begin(), more.end(), spec.name) == more.end()) continue;
    const json now = json_of(options.get(spec));
    const auto it = recorded.find(spec.name);
    const json then = it == recorded.end() ? json_of(spec.default_value) : *it;
    if (then == now) continue;
    constexpr auto lenient = json::error_handler_t::replace;
    differences.push_back({&spec, fmt::format("{}: {} recorded, {} now", spec.name, then.dump(-1, ' ', true, lenient),
                                              now.dump(-1, ' ', true, lenient))});
  }
  return differences;
}

}  // namespace so
