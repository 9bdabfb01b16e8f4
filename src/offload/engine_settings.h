// The settings that an engine is made with, and functions that say what follows from them for each unit.
#pragma once

#include <cstdint>
#include <vector>

#include "base/number_formats.h"
#include "collectives/route.h"
#include "offload/memory/device_weights.h"
#include "offload/schedule/gradient_places.h"
#include "offload/schedule/parameter_layout.h"
#include "offload/schedule/residency.h"
#include "offload/schedule/schedule.h"
#include "offload/schedule/update_policy.h"
#include "optim/adamw.h"
#include "ranks/communicator.h"

namespace so {

struct EngineSettings {
  NumberFormats formats;  // the engine reads weights, gradients and moments
  int device_units = 0;   // units before this one belong to the device, the others to the host
  Schedule schedule = Schedule::overlapped;
  // Where the weights of device-owned units are between their uses: resident, or from_masters, which takes time and
  // saves device memory. Units that stay (ParameterLayout::stays()) are always resident. With several ranks
  // from_masters goes with gathered units: a rank casts its slices of those that the device owns ahead of each gather.
  ResidencyKind device_weights = ResidencyKind::resident;
  // Of gathered units that the host owns, from_masters: a rank's slices of their masters, which are pinned, travel to
  // the device ahead of each gather and are cast there. Saves their weights' device memory, and takes twice its bytes
  // of the link for each use. Such weights are new when all of their state is: nothing is previewed.
  ResidencyKind host_weights = ResidencyKind::resident;
  // Number of host-owned units whose weights are streamed from the host before each use, to save device memory.
  int streamed_units = 0;
  // With several ranks: number of units, of either owner, of which each rank's device keeps slices alone, of weights
  // and gradients (gathered_units.h says which units). Their weights are gathered before each use, and each
  // micro-batch's gradient is reduced. The others' are whole on every rank. Goes with no streamed units yet.
  int gathered = 0;
  // With several ranks: the way of their collectives, where the device's memory is its own.
  CollectiveRoute collectives = CollectiveRoute::nccl;
  // Whether the device updates host-owned buckets too, whose state then travels over the link (link_update.h). It takes
  // device memory for a few buckets, and host memory that is pinned.
  bool update_over_link = false;
  // Moved: takes host memory, pinned, instead of the device's, and with several micro-batches the link carries the sums
  // to and fro. With several ranks a rank's slices move, and each micro-batch's gradient is reduced.
  GradientResidency host_gradients = GradientResidency::resident;
  CastSide cast = CastSide::host;
  std::int64_t bucket_elements = 0;  // at most; a multiple of ParameterLayout::alignment
  // By unit, whether the model makes its input again in backward (schedule/pass_order.h); empty: none is. Weights are
  // brought ahead in the order that follows; any other order gives the same bits, later.
  std::vector<bool> remade_inputs;
  // Whether the gradients of units may become complete in any order. Then no bucket has parts of two units.
  bool units_in_any_order = false;
  std::int64_t undo_buckets = 0;  // that the host can have new state beside the old for
  AdamWHyper adamw;
  double weight_decay = 0, max_grad_norm = 0;
  // Whether the caller waits for all updates when a step is finished, so that none is hidden by the next forward pass.
  bool awaits_updates = false;
  StepTimes expected;  // by the plan: the policy goes by them until they are measured
  // By parameter, weights that lie in memory of the caller's, which outlives the engine (ResidencyKind::callers);
  // empty: in the engine's own. They go with one rank, without streamed units and frozen parameters. Those of
  // device-owned units begin at multiples of 16 bytes, and the device writes them there. Master weights are to be
  // written, and uploaded, before the first step.
  std::vector<WeightPlace> weight_places;
};

// Says by unit where its weights are between their uses.
std::vector<ResidencyKind> residencies_of_units(const ParameterLayout& layout, const EngineSettings& settings);

// Says by unit where its gradients are on the device.
GradientPlaces gradient_places(const ParameterLayout& layout, const EngineSettings& settings, int ranks);

// Whether buckets are cut within units: what a unit has on the device may be another's later, or in slices, or is
// updated at another time.
bool cuts_within_units(const EngineSettings& settings, const Communicator& ranks);

// Throws Error (a bug) of settings that do not go together.
void check_engine_settings(const EngineSettings& settings, const ParameterLayout& layout, const Communicator& ranks);

}  // namespace so
