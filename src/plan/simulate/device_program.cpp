#include "plan/simulate/device_program.h"

#include <algorithm>

#include "offload/schedule/gathered_units.h"
#include "offload/schedule/streamed_units.h"

namespace so {
namespace {

constexpr std::int64_t most_micro_batches = 4;  // that are played one by one

}  // namespace

bool has_collectives(const SimulatedRun& run) {
  return std::any_of(run.units.begin(), run.units.end(),
                     [](const SimulatedUnit& unit) { return unit.reduce > 0 || unit.gather > 0; });
}

GradientPlaces gradient_places_of(const SimulatedRun& run) {
  std::vector<bool> trained;
  for (const SimulatedUnit& unit : run.units) trained.push_back(unit.elements > 0);
  return gradient_places(trained, run.device_units, run.move_gradients, run.gathered_units, has_collectives(run));
}

bool sends_masters(const SimulatedRun& run, const std::vector<bool>& gathered, int unit) {
  const auto u = static_cast<std::size_t>(unit);
  return run.send_masters && unit >= run.device_units && gathered[u] && run.units[u].frozen == 0;
}

DeviceProgram make_device_program(const SimulatedRun& run, const std::vector<bool>& streamed) {
  DeviceProgram program;
  const int units = static_cast<int>(run.units.size());
  const std::vector<bool> gathered = gathered_units(units, run.gathered_units);
  const bool several_ranks = has_collectives(run);
  const std::vector<bool> sliced = gradient_places_of(run).sliced;
  for (int u = 0; u < units; ++u) {
    const SimulatedUnit& unit = run.units[static_cast<std::size_t>(u)];
    program.pass_seconds += unit.forward + (u < run.first_trained_unit ? 0 : unit.backward);
    if (sliced[static_cast<std::size_t>(u)] && u >= run.first_trained_unit) program.pass_collectives += unit.reduce;
  }
  int turn = 0;
  // These count the uses of streamed and of gathered units in the pass under way, and say whether it turns round where
  // the pass before ended, so that what was used last is used next.
  int streamed_uses = 0, gathered_uses = 0;
  bool turns_round = false;
  const auto begin_pass = [&](bool follows) {
    streamed_uses = gathered_uses = 0;
    turns_round = follows;
  };
  const auto op = [&](SimulatedWork work, int unit, bool first, bool last) {
    const SimulatedUnit& u = run.units[static_cast<std::size_t>(unit)];
    DeviceOp o{work, unit, work == SimulatedWork::forward ? u.forward : u.backward, -1, first, last, 0};
    if (streamed[static_cast<std::size_t>(unit)]) {
      o.use = static_cast<int>(program.uses.size());
      const bool first_pass = first && work == SimulatedWork::forward;
      program.uses.push_back({unit, turns_round && streamed_uses++ < stream_places, first_pass});
    }
    const bool in_slices = gathered[static_cast<std::size_t>(unit)];
    const bool first_pass = first && work == SimulatedWork::forward;
    if (several_ranks && (in_slices || first_pass)) {
      o.gather = static_cast<int>(program.gathers.size());
      GatherUse use{unit, -1, false, first_pass};
      if (in_slices) {
        use.turn = turn++;
        use.there = turns_round && gathered_uses++ < gather_places;
      }
      program.gathers.push_back(use);
    }
    program.ops.push_back(o);
  };
  if (run.device_update > 0)
    program.ops.push_back({SimulatedWork::device_update, -1, run.device_update, -1, false, false, 0});
  const std::int64_t played = std::min(run.micro_batches, most_micro_batches);
  for (std::int64_t m = 0; m < played; ++m) {
    const bool first = m == 0, last = m == played - 1;
    if (last && run.micro_batches > played)
      program.ops.push_back({SimulatedWork::forward, -1, 0, -1, false, false, run.micro_batches - played});
    const std::size_t before = program.gathers.size();
    // A backward pass that ends above the first units leaves others in the places than these.
    begin_pass(!first && run.first_trained_unit == 0);
    for (int u = 0; u < units; ++u) op(SimulatedWork::forward, u, first, last);
    begin_pass(true);
    for (int u = units - 1; u >= run.first_trained_unit; --u) op(SimulatedWork::backward, u, first, last);
    if (m != 1) continue;  // all that follow are like it
    for (std::size_t g = before; g < program.gathers.size(); ++g)
      if (!program.gathers[g].there)
        program.pass_collectives += run.units[static_cast<std::size_t>(program.gathers[g].unit)].gather;
  }
  return program;
}

}  // namespace so
