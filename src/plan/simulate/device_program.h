// The device's work in a simulated step (plan/simulate/simulator.h), in order.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/simulate/simulator.h"

namespace so {

struct DeviceOp {
  SimulatedWork work = SimulatedWork::forward;
  int unit = -1;
  double seconds = 0;
  int use = -1;            // of streamed weights: index of DeviceProgram::uses
  bool first = false;      // of the first micro-batch
  bool last = false;       // of the last
  std::int64_t times = 0;  // not 0: so many micro-batches like the one before, at once
};

// A use of streamed weights.
struct StreamUse {
  int unit = -1;
  bool there = false;  // they have been there since the use before
  bool waits = false;  // for the host's weights: of the first forward pass
};

struct DeviceProgram {
  std::vector<DeviceOp> ops;
  std::vector<StreamUse> uses;
  double pass_seconds = 0;  // of a micro-batch
};

// `streamed`: by unit. Of many micro-batches a few are played one by one, the others at once.
DeviceProgram make_device_program(const SimulatedRun& run, const std::vector<bool>& streamed);

}  // namespace so
