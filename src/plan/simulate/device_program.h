// The device's work in a simulated step (plan/simulate/simulator.h), in order.
#pragma once

#include <cstdint>
#include <vector>

#include "offload/schedule/pass_order.h"
#include "plan/simulate/simulator.h"

namespace so {

struct DeviceOp {
  SimulatedWork work = SimulatedWork::forward;
  int unit = -1;
  double seconds = 0;
  int use = -1;            // of streamed weights: index of DeviceProgram::uses
  bool first = false;      // of the first micro-batch
  bool last = false;       // of the last
  std::int64_t times = 0;  // not 0: the micro-batch before is played this often more, at once
  int gather = -1;         // that must be done: index of DeviceProgram::gathers
};

// A use of streamed weights.
struct StreamUse {
  int unit = -1;
  int after = -1;      // the use that had their place before; -1: none
  bool there = false;  // they have been there since that use
  bool waits = false;  // for the host's weights: of the first forward pass
};

// A use of weights that come from all ranks, in the order of their gathers.
struct GatherUse {
  int unit = -1;
  int turn = -1;       // its number among the uses of gathered units, which take places in turn; -1: the unit stays
  int after = -1;      // the turn that had its place before; -1: none
  bool there = false;  // the weights have been there since that turn
  bool waits = false;  // for this rank's own weights: of the first forward pass
};

struct DeviceProgram {
  std::vector<DeviceOp> ops;
  std::vector<StreamUse> uses;
  std::vector<GatherUse> gathers;  // none of one rank
  double pass_seconds = 0;         // of a micro-batch
  double pass_collectives = 0;     // seconds of collectives, of a micro-batch but the first and the last
};

std::vector<BackwardStep> backward_steps_of(const SimulatedRun& run);
// Returns the device's seconds from the head's backward pass on, forward passes that run again included.
double backward_seconds_of(const SimulatedRun& run);

// Of many micro-batches a few are played one by one, the others at once.
DeviceProgram make_device_program(const SimulatedRun& run);

}  // namespace so
