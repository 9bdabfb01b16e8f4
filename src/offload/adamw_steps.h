// The update of each parameter in one optimizer step: AdamW's coefficients, or none for a parameter that stays as it
// is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "offload/schedule/parameter_layout.h"
#include "optim/adamw.h"

namespace so {

// A parameter's own settings in a step, as a parameter group of PyTorch has them.
struct ParameterUpdate {
  AdamWHyper adamw;
  double lr = 0, weight_decay = 0;
  // The parameter's updates up to this one, for AdamW's bias correction. 0: it has no gradient in this step, so its
  // weight and its state stay as they are.
  std::int64_t update_number = 0;
};

// A value that is cheap to copy: copies share the coefficients.
class AdamWSteps {
 public:
  AdamWSteps() = default;  // of no step; it has no runs
  // One step for all parameters, whose learning rate each multiplies by its own factor (Parameter::lr_multiplier).
  AdamWSteps(const ParameterLayout& layout, const AdamWStep& all);
  // A step for each parameter, in their order. `clip` multiplies every gradient.
  AdamWSteps(const ParameterLayout& layout, std::span<const ParameterUpdate> updates, float clip);

  // Elements of trained parameters that one update covers, without padding.
  struct Run {
    Range range;
    bool decay = true;
    const AdamWStep* step = nullptr;  // null: they stay as they are; it lives as long as the steps or a copy of them
  };
  // Returns the runs inside `range`, in order; neighbours with equal updates are one, where the first ends with a whole
  // block of 8-bit moments: a run that begins with a block goes on with whole ones.
  std::vector<Run> runs(const ParameterLayout& layout, Range range) const;

 private:
  std::shared_ptr<const std::vector<std::optional<AdamWStep>>> by_parameter_;
};

}  // namespace so
