// The state that the steps of `bench step` meet: the engine's, or weights and gradients alone.
#pragma once

#include <memory>

#include "base/number_formats.h"
#include "model/spec.h"
#include "ops/runtime.h"
#include "plan/training_plan.h"
#include "ranks/communicator.h"
#include "train/training_step.h"

namespace so {

class BenchState {
 public:
  virtual ~BenchState() = default;
  virtual StepState& of_step() = 0;
  virtual void randomize(const DecoderSpec& spec, Ops& ops, Stream& stream) = 0;
  // The engine measured these of its latest steps; without one there are none.
  // Work that follows on `stream` comes after all of the last step's.
  virtual void require_updates(Stream&) {}
};

// The engine, as in training. A collective of the ranks, which must outlive it.
std::unique_ptr<BenchState> make_engine_state(Runtime& runtime, Communicator& ranks, const ParameterLayout& layout,
                                              const EngineSettings& settings);
// Weights, and gradients of what is trained, alone. No step changes anything.
std::unique_ptr<BenchState> make_plain_state(Device& device, const ParameterLayout& layout,
                                             const NumberFormats& formats);

}  // namespace so
