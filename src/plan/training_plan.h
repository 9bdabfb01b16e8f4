// The plan of a training run, decided before anything large is allocated. Everything later reads it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/decoder/decoder.h"
#include "offload/engine_settings.h"
#include "plan/memory/memory_plan.h"
#include "plan/memory/state_memory.h"
#include "plan/memory/training_shape.h"
#include "plan/placement/alternatives.h"
#include "plan/placement/step_estimate.h"

namespace so {

struct PlanningMachine;
struct RunRequest;

struct TrainingPlan {
  DecoderSettings decoder;
  EngineSettings engine;
  TrainingShape shape;
  std::size_t activation_bytes = 0;  // the arena of forward and backward
  MemoryPlan memory;                 // all that the run will allocate, and what the process holds already
  Device::Limits limits;             // what the device may allocate of it, where the user said what the run may have
  std::optional<StepEstimate> estimate;  // on a GPU, if the optimizer belongs to the plan
  std::optional<SimulatedRun> run;       // what was estimated
  MachineRates rates;                    // that it is made from
  std::vector<std::string> reasons;      // what was chosen and why, a line each
  std::vector<std::pair<PlanChoice, std::vector<Alternative>>> alternatives;  // where it was asked for, on a GPU

  void log_reasons() const;
};

// The request's bucket size is an upper bound where it was not given: it is lowered for models so small that a bucket
// would be most of them. Activations: `on` keeps the layers' inputs at most, `off` everything, `automatic` as much as
// is worth it. On a GPU that, the owners and the places for new state are chosen together (plan/placement/placement.h);
// on the CPU device, as much as fits of activations, then of places. Sizes are found by running the real decoder and
// engine on a dry device. Throws MemoryRefusal if it does not fit.
TrainingPlan plan_training(const DecoderSpec& spec, const ParameterLayout& layout, const PlanningMachine& machine,
                           const TrainingShape& shape, const RunRequest& request, WeightOrigin origin);

// The part of it that comes last, for a plan whose shape, number formats and memory but for the activations are there:
// decides about the activations, adds them, and refuses what does not fit; `for_device` says what helps if that is the
// device's own memory.
void plan_activations(const DecoderSpec& spec, const ParameterLayout& layout, const PlanningMachine& machine,
                      Toggle activation_checkpointing, const std::string& for_device, TrainingPlan& plan);

}  // namespace so
