#include "model/parameter_rules.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/comma_list.h"
#include "base/error.h"

namespace so {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

// The parameters that a pattern is about, by index.
std::vector<std::size_t> matched(const std::string& pattern, std::span<const ParameterAlias> aliases,
                                 const std::vector<Parameter>& parameters) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = parameters[i].name;
    const bool by_alias = std::any_of(aliases.begin(), aliases.end(), [&](const ParameterAlias& alias) {
      return alias.parameter == name && matches(pattern, alias.name);
    });
    if (by_alias || matches(pattern, name)) found.push_back(i);
  }
  return found;
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

void apply(const ParameterRules& rules, std::span<const ParameterAlias> aliases, std::vector<Parameter>& parameters) {
  for (const std::string& pattern : rules.frozen) {
    const std::vector<std::size_t> found = matched(pattern, aliases, parameters);
    if (found.empty())
      fail("--freeze {}: no parameter of the model has such a name; the first and the last are {} and {}", pattern,
           parameters.front().name, parameters.back().name);
    for (const std::size_t i : found) parameters[i].trained = false;
  }
  if (std::none_of(parameters.begin(), parameters.end(), [](const Parameter& p) { return p.trained; }))
    fail("--freeze {}: all {} parameters would be frozen, and nothing trained; leave some out",
         fmt::join(rules.frozen, ","), parameters.size());
  require_apart(parameters);
}

}  // namespace so
