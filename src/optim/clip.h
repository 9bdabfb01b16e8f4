// Clipping by global norm.
#pragma once

namespace so {

// Returns the factor for gradients that makes their norm at most `max_norm`: min(1, max_norm / (norm + 1e-6)), as
// torch.nn.utils.clip_grad_norm_; computed in double, rounded to fp32 once. Exactly 1 if nothing is to be clipped, and
// for max_norm <= 0, which means no clipping. Throws Bug if norm is not finite: such a step is skipped, not clipped.
float clip_coefficient(double norm, double max_norm);

}  // namespace so
