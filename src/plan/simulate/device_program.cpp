#include "plan/simulate/device_program.h"

#include <algorithm>
#include <array>
#include <functional>

#include "offload/schedule/placement.h"

namespace so {
namespace {

constexpr std::int64_t most_micro_batches = 4;  // that are played one by one

// Follows what is in places of device memory that units take in turn.
template <int places>
class PlaceTurns {
 public:
  PlaceTurns(int units, const std::function<bool(int unit)>& takes_turns) {
    for (int unit = 0; unit < units; ++unit) numbers_.push_back(takes_turns(unit) ? count_++ : -1);
  }
  struct Before {
    int use = -1;        // of its place; -1: none
    bool there = false;  // it was this unit's
  };
  // The unit is used, for the n-th time that any is.
  Before use(int unit, int n) {
    Place& place = places_[static_cast<std::size_t>(numbers_[static_cast<std::size_t>(unit)] % places)];
    const Before before{place.use, place.unit == unit};
    place = {unit, n};
    return before;
  }

 private:
  struct Place {
    int unit = -1, use = -1;
  };
  int count_ = 0;
  std::vector<int> numbers_;  // by unit: its number among those that take turns
  std::array<Place, static_cast<std::size_t>(places)> places_;
};

}  // namespace

std::vector<BackwardStep> backward_steps_of(const SimulatedRun& run) {
  return backward_steps(static_cast<int>(run.units.size()), run.first_trained_unit, run.placement.remade_inputs());
}

double backward_seconds_of(const SimulatedRun& run) {
  double seconds = 0;
  for (const BackwardStep& step : backward_steps_of(run)) {
    const SimulatedUnit& unit = run.units[static_cast<std::size_t>(step.unit)];
    seconds += step.forward_again ? unit.forward : unit.backward;
  }
  return seconds;
}

DeviceProgram make_device_program(const SimulatedRun& run) {
  DeviceProgram program;
  const int units = static_cast<int>(run.units.size());
  const bool several_ranks = run.placement.ranks > 1;
  const auto streams = [&](int unit) { return is_streamed(run.placement.unit(unit).weights); };
  const auto gathered = [&](int unit) { return is_gathered(run.placement.unit(unit).weights); };
  const std::vector<BackwardStep> backward = backward_steps_of(run);
  for (const SimulatedUnit& unit : run.units) program.pass_seconds += unit.first_forward();
  program.pass_seconds += backward_seconds_of(run);
  for (const BackwardStep& step : backward)
    if (run.placement.unit(step.unit).sliced && !step.forward_again)
      program.pass_collectives += run.units[static_cast<std::size_t>(step.unit)].reduce;
  int turn = 0;
  PlaceTurns<stream_places> stream_turns(units, streams);
  PlaceTurns<gather_places> gather_turns(units, gathered);
  const auto op = [&](DeviceOp o, bool first_pass, bool again = false) {
    const SimulatedUnit& u = run.units[static_cast<std::size_t>(o.unit)];
    o.seconds = o.work == SimulatedWork::backward ? u.backward : again ? u.forward : u.first_forward();
    if (streams(o.unit)) {
      o.use = static_cast<int>(program.uses.size());
      const auto before = stream_turns.use(o.unit, o.use);
      program.uses.push_back({o.unit, before.use, before.there, first_pass});
    }
    const bool in_slices = gathered(o.unit);
    if (several_ranks && (in_slices || first_pass)) {
      o.gather = static_cast<int>(program.gathers.size());
      GatherUse use{.unit = o.unit, .waits = first_pass};
      if (in_slices) {
        use.turn = turn++;
        const auto before = gather_turns.use(o.unit, use.turn);
        use.after = before.use;
        use.there = before.there;
      }
      program.gathers.push_back(use);
    }
    program.ops.push_back(o);
  };
  if (run.device_update > 0)
    program.ops.push_back({.work = SimulatedWork::device_update, .seconds = run.device_update});
  const std::int64_t played = std::min(run.micro_batches, most_micro_batches);
  for (std::int64_t m = 0; m < played; ++m) {
    const bool first = m == 0, last = m == played - 1;
    if (last && run.micro_batches > played)
      program.ops.push_back({.work = SimulatedWork::forward, .times = run.micro_batches - played});
    const std::size_t before = program.gathers.size();
    for (int u = 0; u < units; ++u)
      op({.work = SimulatedWork::forward, .unit = u, .first = first, .last = last}, first);
    for (const BackwardStep& step : backward)
      if (step.forward_again)
        op({.work = SimulatedWork::forward, .unit = step.unit, .last = last}, false, true);
      else
        op({.work = SimulatedWork::backward, .unit = step.unit, .first = first, .last = last}, false);
    if (m != 1) continue;  // all that follow are like it
    for (std::size_t g = before; g < program.gathers.size(); ++g)
      if (!program.gathers[g].there)
        program.pass_collectives += run.units[static_cast<std::size_t>(program.gathers[g].unit)].gather;
  }
  return program;
}

}  // namespace so
