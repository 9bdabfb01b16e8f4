#include "offload/idle_micro_batch.h"

namespace so {

void run_idle_forward(const ParameterLayout& layout, WeightSource& weights, Stream& stream) {
  for (int unit = 0; unit < layout.units(); ++unit) {
    weights.require_weights(unit, stream);
    weights.release_weights(unit, stream);
  }
}

void run_idle_micro_batch(const ParameterLayout& layout, WeightSource& weights, GradientSink& gradients,
                          Stream& stream) {
  run_idle_forward(layout, weights, stream);
  for (int unit = layout.units() - 1; unit >= 0; --unit) {
    // A model's backward pass goes no further down than it trains, and all ranks have to gather alike.
    const bool needs_weights = unit >= layout.first_trained_unit();
    if (needs_weights) weights.require_weights(unit, stream);
    gradients.require_gradients(unit, stream);
    for (auto [p, end] = layout.unit_parameters(unit); p < end; ++p) {
      const GradientSink::Target target = gradients.gradient(p);
      if (target.tensor && target.mode == Accumulate::overwrite)
        stream.zero(target.tensor.data(), target.tensor.bytes());
    }
    if (needs_weights) weights.release_weights(unit, stream);
    gradients.gradients_ready(unit, stream);
  }
}

}  // namespace so
