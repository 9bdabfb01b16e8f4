#include "plan/simulate/step_play.h"

namespace so {

bool StepPlay::start_reduce() {
  if (reduce_.busy || reductions_.empty()) return false;
  const int unit = reductions_.front();
  reductions_.pop_front();
  start_collective(reduce_, unit, run_.units[at(unit)].reduce,
                   {.lane = SimulatedLane::reduce, .work = SimulatedWork::reduce_scatter, .unit = unit});
  return true;
}

bool StepPlay::start_gather() {
  if (!several_ranks_ || gather_.busy || gathered_ == static_cast<int>(run_.units.size())) return false;
  // The engine enqueues gathers in the order of the forward pass, ahead of the device.
  const int unit = gathered_;
  if (unit < run_.device_units && next_op_ < program_.ops.size() &&
      program_.ops[next_op_].work == SimulatedWork::device_update)
    return false;
  if (run_.schedule == Schedule::synchronous && !schedule_.finished()) return false;
  if (!has_final_weights(unit) || !pieces_.all_of(unit, [&](int i) { return on_the_way_[at(i)] == 0; })) return false;
  start_collective(gather_, unit, run_.units[at(unit)].gather,
                   {.lane = SimulatedLane::gather, .work = SimulatedWork::all_gather, .unit = unit});
  return true;
}

void StepPlay::start_collective(Lane& lane, int unit, double seconds, SimulatedSpan span) {
  lane = {.busy = true, .all = seconds, .left = seconds, .began = now_, .item = unit, .span = span};
}

void StepPlay::finish_reduce() {
  reduce_.busy = false;
  note(reduce_.span, reduce_.began);
  landed(reduce_.item);
}

void StepPlay::finish_gather() {
  gather_.busy = false;
  note(gather_.span, gather_.began);
  ++gathered_;
}

}  // namespace so
