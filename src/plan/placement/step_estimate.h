// How long a step takes with a placement: the inputs that placements are chosen from, and the step of each, simulated.
// No device, no clock. Sizes are the caller's, who learns them from dry runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "offload/schedule/placement.h"
#include "offload/schedule/schedule.h"
#include "options/choices.h"
#include "plan/machine/rates.h"
#include "plan/placement/unit_work.h"
#include "plan/simulate/simulator.h"

namespace so {

// Where bf16 and fp32 are changed into each other for a device that computes in bf16: by which of the two an element is
// sooner through the link and the host's memory, both of which work at once. Both ways give the same bits; where they
// are close, the host, whose way takes less pinned memory. `state_bytes`: ElementBytes::state.
CastSide choose_cast(const MachineRates& rates, double state_bytes);

// All that a run takes but its activations and the places for new state, if the device owns units [0, device_units).
struct StateMemory {
  std::size_t device_bytes = 0, host_bytes = 0;
};

// What is chosen together: who owns which state, where weights and gradients are, what layers keep, and the places for
// new state beside the old.
struct Choice : Counts {
  bool over_link = false;          // Placement::over_link
  std::int64_t keep = 0;           // index of PlacementInputs::keeps
  std::int64_t spare_buckets = 0;  // Placement::spare_buckets
  auto operator<=>(const Choice&) const = default;
};

// The steady state of one optimizer step, in seconds.
struct StepEstimate {
  double gpu = 0;            // forward, backward, recomputation, and the update of what the device owns
  double device_update = 0;  // of it, the latter
  double host = 0;           // that the host's memory is busy: AdamW and the link's traffic
  WaitSeconds waits{};       // of the GPU, by what it waits for
  double exposed = 0;        // their sum
  double seconds() const { return gpu + exposed; }
  // Elements whose new state the host computes beside the old before the verdict.
  double speculated_elements = 0;
  double previewed_elements = 0;  // whose weights are made before it, and the state later
  double over_link_elements = 0;  // of those that the host owns, updated by the device
  StepTimes times;                // that the engine will measure; of an update beside the rest
  HostSeconds host_time{};        // what it does; they make up the step, if it owns anything
  double collectives = 0;         // that the ranks' collectives take
  double collective_waits = 0;    // of `waits`, those for collectives
  StepOverlap overlap() const { return {.seconds = seconds(), .device_idle = waits, .host = host_time}; }
};

// Keeps the steps that were simulated: no run is simulated twice, and none further than asked for.
class KnownSteps {
 public:
  // Returns the seconds of step number `steps`, or of a later one if more have been simulated already.
  double seconds_after(const SimulatedRun& run, int steps);
  // Plays steps until they repeat.
  const StepEstimate& estimate(const SimulatedRun& run);

 private:
  struct Steps {
    std::unique_ptr<Simulator> simulator;  // until there is an estimate
    std::optional<StepEstimate> estimate;
  };
  Steps& of(const SimulatedRun& run);

  std::map<SimulatedRun, Steps> steps_;
};

struct PlacementInputs {
  MachineRates rates;  // of a rank, while all work
  int ranks = 1;       // each with a slice of every bucket, and all weights and gradients but of gathered units
  std::vector<UnitWork> units;
  int first_trained_unit = 0;  // no backward pass goes below it
  Schedule schedule = Schedule::overlapped;
  std::int64_t micro_batches = 1;
  std::int64_t bucket_elements = 0;
  bool gathers_together = true;    // a unit's buckets in one call, else each by itself
  ElementBytes bytes;              // with several ranks, `sum` is of their sums
  double reduced_bytes = 4;        // an element of gradients as the model writes them, which ranks reduce
  CastSide cast = CastSide::host;  // which `bytes` are for
  // The choices of what layers keep, from the cheapest in time to the dearest. At least one.
  std::vector<Recomputation> keeps;
  std::function<std::size_t(std::int64_t keep)> activation_bytes;       // on the device
  std::function<std::size_t(std::int64_t keep)> activation_host_bytes;  // on the host; empty: none
  std::size_t kept_on_host(std::int64_t keep) const { return activation_host_bytes ? activation_host_bytes(keep) : 0; }
  std::function<StateMemory(const Choice&)> memory;  // without activations and places
  // Where weights and gradients may be that need not be whole on the device, those first that keep the most there; the
  // search varies the numbers of units.
  std::vector<Counts> residencies = {{}};
  Toggle over_link = Toggle::off;     // automatic: to be chosen
  int most_streamed = 0;              // host-owned units whose weights may stream, with each of these residencies
  bool forced_stream = false;         // most_streamed do, or all that may
  int most_gathered = 0;              // with several ranks, units that may be gathered, with each of them
  bool forced_gather = false;         // most_gathered are, or all that may
  std::size_t spare_place_bytes = 0;  // of host memory, for one bucket
  std::size_t spare_table_bytes = 0;  // of the device's memory, for one that is pinned: its page tables
  bool one_memory = false;  // the device's is the host's: StateMemory::host_bytes and kept_on_host() are of both
  std::size_t device_budget = 0, host_budget = 0;
  std::size_t spare_budget = 0;            // of host_budget, up to where places for new state may fill it
  std::optional<int> forced_device_units;  // none: to be chosen
  std::shared_ptr<KnownSteps> known_steps = std::make_shared<KnownSteps>();  // copies share them
  // The words of an Error: the device's name, and advice for the device's memory and for the host's.
  std::string device_name, device_advice, host_advice;
};

// Whether there is such a residency: with several ranks only weights that are gathered can be made of masters, of which
// each rank has slices.
bool is_possible(const PlacementInputs& inputs, const Counts& counts);

// Describes a step for the simulator (plan/simulate/simulator.h). An element of AdamW moves 2 s + g + w bytes of
// host memory (s, g, w: its state, gradient and weight): old state read, new state written. The link's copies of
// gradient and weight move g + w bytes more. A preview moves s + g + w bytes for the weights, and 2 s + g later for
// the state. With several ranks it is the step of the first, whose slices are the longest.
SimulatedRun simulated_run(const PlacementInputs& inputs, const Choice& choice);

// Plays the steps of such a run, by the engine's own policy and schedule, until they repeat, on a host whose AdamW and
// memory have this part of their rates (with_host_rates()). With at most `spare_buckets` speculated.
const StepEstimate& estimate_step(const PlacementInputs& inputs, const Choice& choice, double host = 1);

// Counts the buckets that may be speculated: the host's; none in a synchronous schedule.
std::int64_t spare_candidates(const PlacementInputs& inputs, int device_units);
// As many places for new state as a quicker host, and the link if the device updates over it, can fill during backward,
// or as fit beside `host_bytes` that the state takes; whether or not the step is shorter with all of them: a place
// saves the host the second pass of a preview. `choice`: but for these places.
std::int64_t choose_spare_buckets(const PlacementInputs& inputs, const Choice& choice, std::size_t host_bytes);
// The device memory that these places would take if there were enough.
std::size_t spare_tables(const PlacementInputs& inputs, const Choice& choice, std::size_t host_bytes);

// Elements that the host owns.
double host_elements(const SimulatedRun& run);

// A bound that no schedule beats: the seconds of the busiest of those that work at once.
double least_seconds(const SimulatedRun& run);

// The same run on a host whose AdamW and memory have this part of their rates.
SimulatedRun with_host_rates(SimulatedRun run, double part);

// Ranks a plan by its estimate, lower is better: the seconds of a step without the device's own update. So a parameter
// whose update the host would hide never ranks better on the host than on the device, though moving it would save
// device time (1 or 2% of a step): whether an update stays hidden depends on more than was measured.
double rank_of(const StepEstimate& estimate);

}  // namespace so
