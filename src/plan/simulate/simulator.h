// A discrete-event simulation of optimizer steps: the engine's own decisions (offload/schedule/host_schedule.h,
// offload/schedule/update_policy.h) on a model of a machine. Four lanes work at once: the device, the link to the host,
// the host's AdamW, and the link back. Where updates go over the link a fifth takes buckets' state to the device, which
// updates it, and back; where gradients move it stands still while any go to the host. AdamW and the link's copies
// share the bandwidth of the host's memory (host_bandwidth.h). The device goes through its units in order. Its waits
// are recorded by what it waits for. Weights that stream come when all of their unit are final; if the device waits for
// them, as they become final.
//
// With several ranks this is the step of one of them: the others do the same at the same time, and `elements` are its
// own slice. Two more lanes work then, as the engine has them (offload/exchange.h). Reductions follow the backward
// pass of the last micro-batch: the host is given a unit's gradient, and the verdict taken, when the sums are there.
// Gathers follow the first forward pass, each as soon as the rank's own weights of the unit have arrived. Gathered
// units (memory/gathered_weights.h) have a reduction in every backward pass, before which the place of their gradient
// is not free, and a gather before each use, as soon as one of their places is; what the pass before used last is
// there. Where the host's masters are sent, the rank's slice of these travels over the link first.
//
// Where units' inputs are not kept, a backward pass runs the units before them forward once more, and needs these
// units' weights for that (offload/schedule/pass_order.h).
//
// Where gradients move to host memory and there are several micro-batches, a unit's sum so far leaves after each of its
// backward passes but is brought back before the next, as soon as its slot is free (offload/moved_gradients.h). With
// several ranks these are the slots of the rank's slices: each backward pass has a reduction, which waits for its slot.
//
// Where the engine moves buckets the simulator moves pieces of units, as few as give the same result. No device, no
// clock.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "offload/schedule/host_schedule.h"
#include "offload/schedule/overlap.h"
#include "offload/schedule/placement.h"
#include "offload/schedule/step_time.h"
#include "offload/schedule/traffic.h"
#include "offload/schedule/update_policy.h"
#include "offload/schedule/wait_reason.h"

namespace so {

// Seconds of the device for one unit (offload/schedule/parameter_layout.h) and one micro-batch, recomputation with
// backward.
struct SimulatedUnit {
  std::int64_t elements = 0;  // that are updated
  double forward = 0, backward = 0;
  double reduce = 0, gather = 0;  // seconds of its collectives, where there are several ranks
  std::int64_t frozen = 0;        // weights beside `elements`, which stream with them
  // Seconds by which a forward pass takes longer since its input goes to the host; not one that runs again.
  double input_to_host = 0;
  double first_forward() const { return forward + input_to_host; }
  auto operator<=>(const SimulatedUnit&) const = default;
};

// The run to simulate, and the machine to simulate it on.
struct SimulatedRun {
  Placement placement;  // buckets are slices where there are several ranks
  std::vector<SimulatedUnit> units;
  int first_trained_unit = 0;  // no backward pass goes below it
  double device_update = 0;    // seconds of the device for its own AdamW, after the verdict
  Verdicts verdicts = Verdicts::stand;
  std::int64_t micro_batches = 1;
  ElementBytes bytes;
  double link_to_host = 0, link_to_device = 0, host_memory = 0;  // bytes/s
  double host_adamw = std::numeric_limits<double>::infinity();   // of host_memory, what AdamW can use at most
  double link_both = std::numeric_limits<double>::infinity();    // of the link, both ways at once, added up
  auto operator<=>(const SimulatedRun&) const = default;
};

struct SimulatedStep {
  double seconds = 0;                    // from verdict to verdict
  double device = 0;                     // of it, that the device works
  WaitSeconds waits{};                   // that it waits; both make up the step
  double host_bytes = 0;                 // that pass through the host's memory
  double speculated = 0, previewed = 0;  // elements, ahead of the verdict
  double over_link = 0;                  // elements whose state the device made, before the verdict or after it
  StepTimes times;                       // that the engine would have measured
  HostSeconds host{};                    // what the host's AdamW does; they make up the step, if it owns anything
  double collectives = 0;                // that the ranks' collectives take
  double collective_waits = 0;           // of the device's waits, those for collectives
  StepOverlap overlap() const { return {.seconds = seconds, .device_idle = waits, .host = host}; }
};

enum class SimulatedLane : std::uint8_t { device, to_host, host, to_device, link, reduce, gather };
inline constexpr int simulated_lanes = 7;
enum class SimulatedWork : std::uint8_t {
  forward,
  backward,
  device_update,   // of the device
  wait,            // of the device, for `reason`
  fetch,           // of a gradient, to the host
  bring_sum,       // of gradients, to the device
  host_task,       // of the host: `task`
  send,            // of weights, to the device
  over_link,       // state to the device and back: `task`
  stream,          // of a unit's weights, ahead of their use
  masters,         // of a unit, to the device, ahead of a gather
  reduce_scatter,  // of a unit's gradient, over ranks
  all_gather,      // of a unit's weights, from all ranks
};

// A while that a lane worked, or the device waited.
struct SimulatedSpan {
  SimulatedLane lane = SimulatedLane::device;
  SimulatedWork work = SimulatedWork::forward;
  HostTask task = HostTask::none;
  WaitReason reason = WaitReason::host;
  int unit = -1;              // -1: of none
  double begin = 0, end = 0;  // seconds since the verdict of the step before
  double bytes = 0;           // of a copy
};
struct SimulatedTimeline {
  double seconds = 0;                // of the step
  std::vector<SimulatedSpan> spans;  // what falls into it, in order of their ends
};

class StepPlay;

class Simulator {
 public:
  // `policy` is asked in every step in which what was measured differs, by more than a thousandth, from what it was
  // asked with last. null: the one that the engine takes for the schedule, asked three times at most.
  explicit Simulator(SimulatedRun run, std::unique_ptr<UpdatePolicy> policy = nullptr);
  ~Simulator();
  Simulator(const Simulator&) = delete;
  Simulator& operator=(const Simulator&) = delete;

  // Plays the next step. The first finds all weights where they belong.
  SimulatedStep step();
  // Returns how many steps have been played, and the seconds of the last one (-1 before the first).
  int played() const { return played_; }
  double last_seconds() const { return seconds_; }
  // Plays steps until they repeat; where they alternate, the mean of some. Steps that were played before count.
  SimulatedStep settle();
  // Plays another one and keeps what was done when.
  SimulatedTimeline timeline();

  const HostCounters& counters() const;  // in pieces
  std::size_t pieces() const;            // of all that the host owns

 private:
  const std::unique_ptr<StepPlay> play_;
  int played_ = 0;       // steps
  double seconds_ = -1;  // of the last one
};

}  // namespace so
