// Options as people read them: help, documentation, settings log, suggestions.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <limits>

#include "base/option_table.h"
#include "base/terminal.h"

namespace so {
namespace {

constexpr double int_limit = std::numeric_limits<int>::max();

// A bound that a row states, as opposed to the range of the member's type.
bool has_lower(const OptionSpec& spec) { return spec.lower > -int_limit; }
bool has_upper(const OptionSpec& spec) { return spec.upper < int_limit; }

std::string number(double bound) { return fmt::format("{}", bound); }

std::string range_text(const OptionSpec& spec) {
  std::string text;
  if (has_lower(spec)) text += fmt::format("{} {}", spec.lower_open ? ">" : ">=", number(spec.lower));
  if (has_upper(spec))
    text += fmt::format("{}{} {}", text.empty() ? "" : " and ", spec.upper_open ? "<" : "<=", number(spec.upper));
  return text;
}

std::string special_text(const OptionSpec& spec) {
  if (!spec.special_value) return {};
  return fmt::format("{}: {}", to_string(*spec.special_value), spec.special_meaning);
}

std::string default_text(const OptionSpec& spec) {
  if (spec.is_required) return "required";
  const std::string text = to_string(spec.default_value);
  if (text.empty()) return spec.unset_meaning.empty() ? "none" : spec.unset_meaning;
  return text;
}

std::string placeholder(const OptionSpec& spec) {
  if (!spec.value_name.empty()) return spec.value_name;
  switch (spec.kind) {
    case OptionKind::boolean:
      return "true|false";
    case OptionKind::integer:
      return "N";
    case OptionKind::real:
      return "X";
    case OptionKind::text:
      return "TEXT";
    case OptionKind::choice:
      return fmt::format("{}", fmt::join(spec.choices, "|"));
  }
  return {};
}

std::string help_of(const OptionSpec& spec) {
  if (spec.hub_use == HubUse::none) return spec.help;
  return fmt::format("{}; or ORG/NAME[@REVISION], a {} in the Hugging Face cache", spec.help,
                     spec.hub_use == HubUse::data ? "data set" : "model");
}

// "(bytes; > 0; default 67108864)"
std::string remarks(const OptionSpec& spec) {
  std::vector<std::string> parts;
  if (!spec.value_unit.empty()) parts.push_back(spec.value_unit);
  if (const std::string range = range_text(spec); !range.empty()) parts.push_back(range);
  if (const std::string special = special_text(spec); !special.empty()) parts.push_back(special);
  if (spec.bare_value && spec.kind != OptionKind::boolean) parts.push_back("alone: " + *spec.bare_value);
  if (spec.is_file_only) parts.push_back("DeepSpeed file only");
  if (!spec.aliases.empty()) parts.push_back(fmt::format("also --{}", fmt::join(spec.aliases, ", --")));
  parts.push_back(spec.is_required ? "required" : "default " + default_text(spec));
  return fmt::format("({})", fmt::join(parts, "; "));
}

std::string with_unit(const std::string& value, std::string_view unit) {
  if (value == "1" && unit.back() == 's') unit.remove_suffix(1);
  return fmt::format("{} {}", value, unit);
}

// An option and its meaning, beside each other where there is room for both.
void append_option(std::string& out, const OptionSpec& spec, std::size_t columns) {
  const std::size_t column = columns >= 100 ? 38 : columns >= 60 ? 26 : 6;
  const std::string head = filled(option_synopsis(spec), columns, 2),
                    meaning = filled(option_meaning(spec), columns, column);
  if (head.size() + 1 > column) {
    out += head + meaning;
    return;
  }
  out.append(head, 0, head.size() - 1).append(meaning, head.size() - 1);
}

std::string cell(std::string text) {  // a Markdown table's cell
  for (std::size_t i = 0; (i = text.find('|', i)) != std::string::npos; i += 2) text.insert(i, 1, '\\');
  return text;
}

char folded(char c) { return c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

// Edits are insertion, deletion, substitution and the swap of two neighbours (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const char x = folded(a[i - 1]), y = folded(b[j - 1]);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (x == y ? 0u : 1u)});
      if (i > 1 && j > 1 && x == folded(b[j - 2]) && folded(a[i - 2]) == y)
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string option_synopsis(const OptionSpec& spec) {
  if (spec.is_file_only) return spec.name + " " + placeholder(spec);
  if (spec.bare_value) return fmt::format("--{} [{}]", spec.name, placeholder(spec));
  return fmt::format("--{} {}", spec.name, placeholder(spec));
}

std::string option_meaning(const OptionSpec& spec) { return help_of(spec) + " " + remarks(spec); }

std::string describe_values(const OptionSpec& spec) {
  switch (spec.kind) {
    case OptionKind::boolean:
      return "true or false";
    case OptionKind::text:
      return "text";
    case OptionKind::choice:
      return fmt::format("{}", fmt::join(spec.choices, ", "));
    case OptionKind::integer:
    case OptionKind::real:
      break;
  }
  std::string text = spec.kind == OptionKind::integer ? "whole number" : "number";
  if (const std::string range = range_text(spec); !range.empty()) text += " " + range;
  if (const std::string special = special_text(spec); !special.empty()) text += fmt::format(" ({})", special);
  return text;
}

std::vector<EffectiveSetting> effective_settings(OptionsView options, const OptionOrigins& origins) {
  std::vector<EffectiveSetting> settings;
  for (const OptionSpec& spec : options.rows().specs()) {
    std::string value = to_string(options.get(spec));
    if (value.empty())
      value = spec.unset_meaning.empty() ? "none" : fmt::format("({})", spec.unset_meaning);
    else if (!spec.value_unit.empty())
      value = with_unit(value, spec.value_unit);
    settings.push_back({spec.name, std::move(value), &origins.of(spec.name)});
  }
  return settings;
}

namespace {

std::string settings_table(std::string text, const std::vector<EffectiveSetting>& settings,
                           const OptionOrigins& origins) {
  std::size_t name_width = 0, value_width = 0;
  for (const auto& [name, value, origin] : settings) {
    name_width = std::max(name_width, name.size());
    if (value.size() <= 40) value_width = std::max(value_width, value.size());  // one long path must not widen them all
  }
  for (const auto& [name, value, origin] : settings) {
    text += fmt::format("  {:<{}}  {:<{}}  {}", name, name_width, value, value_width, name_of(origin->origin));
    if (!origin->where.empty()) text += fmt::format(" ({})", origin->where);
    if (!origin->overridden.empty()) text += fmt::format("; overrides: {}", origin->overridden);
    text += "\n";
  }
  for (const std::string& note : origins.notes) text += "  note: " + note + "\n";
  text.pop_back();
  return text;
}

}  // namespace

std::string settings_log(OptionsView options, const OptionOrigins& origins) {
  return settings_table("settings:\n", effective_settings(options, origins), origins);
}

std::string changed_settings_log(OptionsView options, const OptionOrigins& origins) {
  std::vector<EffectiveSetting> settings = effective_settings(options, origins);
  std::erase_if(settings, [&](const EffectiveSetting& setting) {
    const OptionSpec& spec = options.rows().at(setting.name);
    return !origins.given(setting.name) || options.get(spec) == spec.default_value;
  });
  return settings_table("settings that are not the defaults:\n", settings, origins);
}

std::string help_text(const OptionRows& rows, std::size_t columns) {
  std::string out, group;
  bool first = true;
  for (const OptionSpec& spec : rows.specs()) {
    if (first || spec.group != group) {
      out += fmt::format("{}{}:\n", first ? "" : "\n", spec.group);
      group = spec.group;
      first = false;
    }
    append_option(out, spec, columns);
  }
  return out;
}

std::string markdown_text(const OptionRows& rows) {
  std::string out, group;
  for (const OptionSpec& spec : rows.specs()) {
    if (out.empty() || spec.group != group) {
      out += fmt::format(
          "{}#### {}\n\n| option | meaning | default | default from | DeepSpeed key |\n|---|---|---|---|---|\n",
          out.empty() ? "" : "\n", spec.group);
      group = spec.group;
    }
    std::vector<std::string> details;
    if (!spec.value_unit.empty()) details.push_back(spec.value_unit);
    if (const std::string range = range_text(spec); !range.empty()) details.push_back(range);
    if (const std::string special = special_text(spec); !special.empty()) details.push_back(special);
    if (spec.bare_value && spec.kind != OptionKind::boolean) details.push_back("alone: " + *spec.bare_value);
    if (spec.changes_results) details.push_back("affects results");
    if (!spec.aliases.empty()) details.push_back(fmt::format("also `--{}`", fmt::join(spec.aliases, "`, `--")));
    std::vector<std::string> keys;
    for (const std::string& key : spec.deepspeed_keys) keys.push_back("`" + key + "`");
    out += fmt::format("| `{}` | {}{} | {} | {} | {} |\n", cell(option_synopsis(spec)), cell(help_of(spec)),
                       details.empty() ? "" : cell(fmt::format(" ({})", fmt::join(details, "; "))),
                       cell(default_text(spec)), spec.default_origin, fmt::join(keys, ", "));
  }
  return out;
}

std::string meant_option(const OptionRows& rows, std::string_view name, std::string_view dashes) {
  for (const OptionRows::Absent& absent : rows.absent())
    if (absent.name == name) fail("there is no option {}{}: {}; remove it", dashes, name, absent.why);
  std::vector<std::string> names;
  for (const OptionSpec& spec : rows.specs()) {
    if (spec.is_file_only) {
      if (spec.name == name)
        fail("{}{} is set in the DeepSpeed file, as {}, {}", dashes, name, spec.deepspeed_keys.front(),
             dashes.empty() ? "not here" : "not on the command line");
      continue;
    }
    if (std::find(spec.foreign_names.begin(), spec.foreign_names.end(), name) != spec.foreign_names.end())
      return fmt::format("; here it is {}{}", dashes, spec.name);
    names.push_back(spec.name);
  }
  const std::string near = nearest_name(name, names);
  return near.empty() ? std::string() : fmt::format("; did you mean {}{}?", dashes, near);
}

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  if (name.size() > 64) return {};
  std::string_view best;
  std::size_t best_distance = std::numeric_limits<std::size_t>::max();
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  // More than a third of the letters wrong is another word, not a slip.
  const std::size_t allowed = std::max<std::size_t>(1, std::max(name.size(), best.size()) / 3);
  return best_distance <= allowed ? std::string(best) : std::string();
}

std::string join(std::span<const std::string> texts, std::string_view separator) {
  return fmt::format("{}", fmt::join(texts.begin(), texts.end(), separator));
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t limit = 80;
  std::string out = "\"";
  for (const char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += fmt::format("\\{}", c);
    else if (byte < 0x20 || byte == 0x7f)
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  out += text.size() > limit ? "\"..." : "\"";
  return out;
}

}  // namespace so
