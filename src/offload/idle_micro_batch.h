// The passes of a rank that has nothing to compute: the last step of an epoch may have fewer rows than ranks.
#pragma once

#include <vector>

#include "offload/memory/parameter_source.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

// Asks for weights and hands over gradients in the order in which a model does, so that this rank joins the other
// ranks' collectives; `remade_inputs` as in EngineSettings. Its gradients are zeros, or those of the step's
// micro-batches before. Enqueues.
void run_idle_micro_batch(const ParameterLayout& layout, const std::vector<bool>& remade_inputs, WeightSource& weights,
                          GradientSink& gradients, Stream& stream);
// The same of a pass that goes forward only, as in an evaluation.
void run_idle_forward(const ParameterLayout& layout, WeightSource& weights, Stream& stream);

}  // namespace so
