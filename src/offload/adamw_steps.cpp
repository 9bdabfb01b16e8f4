#include "offload/adamw_steps.h"

#include "base/error.h"

namespace so {
namespace {

bool equal_updates(const AdamWStep* a, const AdamWStep* b) { return a == b || (a && b && *a == *b); }

}  // namespace

AdamWSteps::AdamWSteps(const ParameterLayout& layout, const AdamWStep& all) {
  std::vector<std::optional<AdamWStep>> steps;
  for (const Parameter& parameter : layout.parameters())
    steps.emplace_back(with_lr_multiplier(all, parameter.lr_multiplier));
  by_parameter_ = std::make_shared<const std::vector<std::optional<AdamWStep>>>(std::move(steps));
}

AdamWSteps::AdamWSteps(const ParameterLayout& layout, std::span<const ParameterUpdate> updates, float clip) {
  SO_CHECK(static_cast<int>(updates.size()) == layout.count(), "updates of {} of {} parameters", updates.size(),
           layout.count());
  std::vector<std::optional<AdamWStep>> steps;
  for (const ParameterUpdate& update : updates) {
    std::optional<AdamWStep>& step = steps.emplace_back();
    if (update.update_number > 0)
      step = make_adamw_step(update.adamw, update.lr, update.weight_decay, update.update_number, clip);
  }
  by_parameter_ = std::make_shared<const std::vector<std::optional<AdamWStep>>>(std::move(steps));
}

std::vector<AdamWSteps::Run> AdamWSteps::runs(const ParameterLayout& layout, Range range) const {
  std::vector<Run> runs;
  if (!by_parameter_) return runs;
  for (int p = layout.first_ending_after(range.begin); p < layout.count() && layout.range(p).begin < range.end; ++p) {
    const Parameter& parameter = layout.parameter(p);
    const Range part = common(layout.range(p), range);
    if (!parameter.trained || part.size() <= 0) continue;
    const std::optional<AdamWStep>& own = (*by_parameter_)[static_cast<std::size_t>(p)];
    const AdamWStep* step = own ? &*own : nullptr;
    if (!runs.empty() && runs.back().range.end == part.begin && layout.parameter(p - 1).size() % moment_block == 0 &&
        runs.back().decay == parameter.decay && equal_updates(runs.back().step, step))
      runs.back().range.end = part.end;
    else
      runs.push_back({part, parameter.decay, step});
  }
  return runs;
}

}  // namespace so
