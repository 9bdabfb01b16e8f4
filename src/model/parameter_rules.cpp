#include "model/parameter_rules.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <set>
#include <string_view>

#include "base/comma_list.h"
#include "base/error.h"
#include "base/file.h"

namespace so {
namespace {

constexpr const char* lr_multiplier_option = "--lr_multiplier";

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

// The parameters that a pattern is about, by index.
std::vector<std::size_t> matched(const std::string& pattern, std::span<const ParameterAlias> aliases,
                                 const std::vector<Parameter>& parameters) {
  std::set<std::string_view> by_alias;
  for (const ParameterAlias& alias : aliases)
    if (matches(pattern, alias.name)) by_alias.insert(alias.parameter);
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (by_alias.contains(parameters[i].name) || matches(pattern, parameters[i].name)) found.push_back(i);
  return found;
}

// Throws Error if the pattern is no parameter's.
std::vector<std::size_t> require_matched(const char* option, const std::string& pattern,
                                         std::span<const ParameterAlias> aliases,
                                         const std::vector<Parameter>& parameters) {
  std::vector<std::size_t> found = matched(pattern, aliases, parameters);
  if (found.empty())
    fail("{} {}: no parameter of the model has such a name; the first and the last are {} and {}", option,
         printable(pattern), parameters.front().name, parameters.back().name);
  return found;
}

void apply_frozen(const std::vector<std::string>& patterns, std::span<const ParameterAlias> aliases,
                  std::vector<Parameter>& parameters) {
  for (const std::string& pattern : patterns)
    for (const std::size_t i : require_matched("--freeze", pattern, aliases, parameters)) parameters[i].trained = false;
  if (std::none_of(parameters.begin(), parameters.end(), [](const Parameter& p) { return p.trained; }))
    fail("--freeze {}: all {} parameters would be frozen, and nothing trained; leave some out",
         fmt::join(patterns, ","), parameters.size());
}

void apply_lr_multipliers(const std::vector<ParameterRules::LrMultiplier>& multipliers,
                          std::span<const ParameterAlias> aliases, std::vector<Parameter>& parameters) {
  std::vector<bool> taken(parameters.size());
  for (const auto& [pattern, factor] : multipliers) {
    bool any_trained = false, any_left = false;
    for (const std::size_t i : require_matched(lr_multiplier_option, pattern, aliases, parameters)) {
      if (!parameters[i].trained) continue;
      any_trained = true;
      if (taken[i]) continue;
      any_left = taken[i] = true;
      parameters[i].lr_multiplier = factor;
    }
    if (!any_trained)
      fail("{} {}: --freeze leaves none of these parameters to train; leave the pattern out of one of the two",
           lr_multiplier_option, pattern);
    if (!any_left)
      fail("{} {}: patterns before it match all of these parameters, and the first that matches counts; put it first",
           lr_multiplier_option, pattern);
  }
}

// An update begins at a cache line, and joined parameters lie without a gap.
void require_apart(const std::vector<Parameter>& parameters) {
  std::int64_t offset = 0;  // since the first of the joined
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (!p.joined) offset = 0;
    if (p.joined && p.trained != parameters[i - 1].trained && offset % ParameterLayout::alignment != 0)
      fail(
          "--freeze: '{}' and '{}' lie in one matrix here, and where they meet no update can begin; freeze both or none",
          parameters[i - 1].name, p.name);
    offset += p.size();
  }
}

}  // namespace

std::vector<std::string> parse_patterns(const std::string& text, const std::string& option) {
  std::vector<std::string> patterns;
  for (std::string_view one : between_commas(text)) {
    while (one.starts_with(' ')) one.remove_prefix(1);
    while (one.ends_with(' ')) one.remove_suffix(1);
    if (one.empty()) fail("{} {}: a pattern is empty; patterns have commas between them", option, text);
    patterns.emplace_back(one);
  }
  return patterns;
}

std::vector<ParameterRules::LrMultiplier> parse_lr_multipliers(const std::string& text, const std::string& option) {
  constexpr double least = 1e-6, most = 1e6;
  std::vector<ParameterRules::LrMultiplier> multipliers;
  for (const std::string& one : parse_patterns(text, option)) {
    const std::size_t sign = one.rfind('=');
    if (sign == std::string::npos || sign == 0)
      fail("{} {}: that is no PATTERN=FACTOR, as model.embed_tokens.*=0.1 is", option, printable(one));
    const std::string pattern = one.substr(0, sign);
    const char *begin = one.data() + sign + 1, *end = one.data() + one.size();
    double factor = 0;
    const auto [stop, error] = std::from_chars(begin, end, factor);
    const bool is_number = error == std::errc() && stop == end;
    if (is_number && factor == 0)
      fail("{} {}=0: parameters that are not to be trained are --freeze's; use --freeze '{}'", option,
           printable(pattern), printable(pattern));
    if (!is_number || !(factor >= least && factor <= most))
      fail("{} {}: the factor must be a number from {} to {}", option, printable(one), least, most);
    multipliers.push_back({pattern, factor});
  }
  return multipliers;
}

void apply(const ParameterRules& rules, std::span<const ParameterAlias> aliases, std::vector<Parameter>& parameters) {
  apply_frozen(rules.frozen, aliases, parameters);
  require_apart(parameters);
  apply_lr_multipliers(rules.lr_multipliers, aliases, parameters);
}

}  // namespace so
