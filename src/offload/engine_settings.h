// The settings that an engine is made with.
#pragma once

#include <vector>

#include "base/number_formats.h"
#include "offload/memory/device_weights.h"
#include "offload/schedule/placement.h"
#include "offload/schedule/update_policy.h"
#include "optim/adamw.h"
#include "ranks/collectives/route.h"
#include "ranks/communicator.h"

namespace so {

// What a program that owns the weights, and calls the engine as its own passes come, asks beside.
struct Caller {
  // Where each parameter's weights lie in the caller's memory, which outlives the engine (ResidencyKind::callers);
  // empty: in the engine's own. They go with one rank, without frozen parameters. Those of device-owned units begin at
  // multiples of 16 bytes, and the device writes them there. Master weights are to be written, and uploaded, before the
  // first step.
  std::vector<WeightPlace> weights;
  // Whether the gradients of units may become complete in any order. Then no bucket has parts of two units.
  bool any_order = false;
  // Whether it waits for all updates when a step is finished, so that none is hidden by the next forward pass.
  bool awaits_updates = false;
};

struct EngineSettings {
  Placement placement;    // with a row for each unit
  NumberFormats formats;  // the engine reads weights, gradients and moments
  // With several ranks: the way of their collectives, where the device's memory is its own.
  CollectiveRoute collectives = CollectiveRoute::nccl;
  AdamWHyper adamw;
  double weight_decay = 0, max_grad_norm = 0;
  StepTimes expected;  // by the plan: the policy goes by them until they are measured
  Caller caller;
};

// Returns `settings`. Throws Bug if they do not go together, or with these.
const EngineSettings& check_settings(const EngineSettings& settings, const ParameterLayout& layout,
                                     const Communicator& ranks);

}  // namespace so
