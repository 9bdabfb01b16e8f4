#include "commands/parameter_options.h"

#include <fmt/format.h>

#include <algorithm>

namespace so {

ParameterRules parameter_rules(const ParameterOptions& options) {
  ParameterRules rules;
  if (options.freeze) rules.frozen = parse_patterns(*options.freeze, "--freeze");
  return rules;
}

std::string frozen_line(const ParameterLayout& layout) {
  if (!layout.has_frozen()) return {};
  const auto frozen = std::count_if(layout.parameters().begin(), layout.parameters().end(),
                                    [](const Parameter& p) { return !p.trained; });
  const std::int64_t all = layout.parameter_elements(), trained = layout.trained_parameter_elements();
  std::string line = fmt::format("frozen: {} of {} tensors, {:.1f}% of the parameters", frozen, layout.count(),
                                 100 * static_cast<double>(all - trained) / static_cast<double>(all));
  if (const int first = layout.first_trained_unit(); first > 0)
    line +=
        fmt::format("; the backward pass ends at unit {} (0 is the embedding, {} the head)", first, layout.units() - 1);
  return line;
}

}  // namespace so
