// The rules of a run for parameters, by their names.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "offload/schedule/parameter_layout.h"

namespace so {

// Patterns are a shell's, and match a whole name: * is any text, dots included, ? any character, [abc] one of these.
struct ParameterRules {
  struct LrMultiplier {
    std::string pattern;
    double factor = 1;
  };
  std::vector<std::string> frozen = {};           // patterns of parameters that are not trained
  std::vector<LrMultiplier> lr_multipliers = {};  // of two that match one parameter, the first counts
};

// Patterns with commas between them. Throws Error, naming `option`, if one is empty.
std::vector<std::string> parse_patterns(const std::string& text, const std::string& option);

// The same with "=FACTOR" behind each. Throws Error, naming `option`, for a factor that is no number of its range.
std::vector<ParameterRules::LrMultiplier> parse_lr_multipliers(const std::string& text, const std::string& option);

// Another name of a parameter, as a tied output projection has one.
struct ParameterAlias {
  std::string name;
  std::string parameter;
};

// Marks the parameters that the rules are about. A pattern that matches an alias matches its parameter. Throws Error,
// naming the option, if a pattern matches nothing, if nothing is left to train, if only a part of a joined matrix is
// frozen and ends where no update could begin, or if a multiplier is left without a parameter: all that its pattern
// matches are frozen, or have one of a pattern before it.
void apply(const ParameterRules& rules, std::span<const ParameterAlias> aliases, std::vector<Parameter>& parameters);

}  // namespace so
