#include "checkpoint/parameter_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <vector>

namespace so {

ParameterRules parameter_rules(const ParameterOptions& options) {
  ParameterRules rules;
  if (options.freeze) rules.frozen = parse_patterns(*options.freeze, "--freeze");
  return rules;
}

ParameterRules parameter_rules(const TrainOptions& options) {
  ParameterRules rules = parameter_rules(static_cast<const ParameterOptions&>(options));
  if (options.lr_multiplier) rules.lr_multipliers = parse_lr_multipliers(*options.lr_multiplier, "--lr_multiplier");
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

std::string lr_multiplier_line(const ParameterLayout& layout) {
  struct Having {
    int tensors = 0;
    std::int64_t elements = 0;
  };
  std::map<double, Having> by_factor;
  for (const Parameter& p : layout.parameters()) {
    if (!p.trained) continue;
    Having& having = by_factor[p.lr_multiplier];
    ++having.tensors;
    having.elements += p.size();
  }
  if (by_factor.empty() || (by_factor.size() == 1 && by_factor.begin()->first == 1)) return {};
  std::vector<std::string> parts;
  for (const auto& [factor, having] : by_factor)
    parts.push_back(
        fmt::format("{}lr for {} of {} tensors, {:.1f}% of the parameters",
                    factor == 1 ? "" : fmt::format("{} * ", factor), having.tensors, layout.count(),
                    100 * static_cast<double>(having.elements) / static_cast<double>(layout.parameter_elements())));
  return fmt::format("learning rates: {}", fmt::join(parts, "; "));
}

}  // namespace so
