#include "offload/idle_micro_batch.h"

#include <algorithm>

#include "offload/schedule/pass_order.h"

namespace so {
namespace {

void run_idle_backward(const ParameterLayout& layout, int unit, GradientSink& gradients, Stream& stream) {
  gradients.require_gradients(unit, stream);
  for (auto [p, end] = layout.unit_parameters(unit); p < end; ++p) {
    const GradientSink::Target target = gradients.gradient(p);
    if (target.tensor && target.mode == Accumulate::overwrite) stream.zero(target.tensor.data(), target.tensor.bytes());
  }
}

}  // namespace

void run_idle_forward(const ParameterLayout& layout, WeightSource& weights, Stream& stream) {
  for (int unit = 0; unit < layout.units(); ++unit) {
    weights.require_weights(unit, stream);
    weights.release_weights(unit, stream);
  }
}

void run_idle_micro_batch(const ParameterLayout& layout, const std::vector<bool>& remade_inputs, WeightSource& weights,
                          GradientSink& gradients, Stream& stream) {
  run_idle_forward(layout, weights, stream);
  const int first_trained = layout.first_trained_unit();
  for (const BackwardStep& step : backward_steps(layout.units(), first_trained, remade_inputs)) {
    weights.require_weights(step.unit, stream);
    if (!step.forward_again) run_idle_backward(layout, step.unit, gradients, stream);
    weights.release_weights(step.unit, stream);
    if (!step.forward_again) gradients.gradients_ready(step.unit, stream);
  }
  // A model's backward pass goes no further down than it trains, and all ranks have to gather alike.
  for (int unit = std::min(first_trained, layout.units()) - 1; unit >= 0; --unit) {
    run_idle_backward(layout, unit, gradients, stream);
    gradients.gradients_ready(unit, stream);
  }
}

}  // namespace so
