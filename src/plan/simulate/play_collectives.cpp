#include <utility>

#include "plan/simulate/step_play.h"

namespace so {

bool StepPlay::start_reduce() {
  if (reduce_.busy || reductions_.empty()) return false;
  const auto [unit, first, last] = reductions_.front();
  if (const int slot = slot_of(unit); slot >= 0) {
    if (!slot_is_ready(unit, first)) return false;
    slots_[at(slot)] = {.unit = unit};
  }
  start_collective(reduce_, unit, run_.units[at(unit)].reduce,
                   {.lane = SimulatedLane::reduce, .work = SimulatedWork::reduce_scatter, .unit = unit});
  return true;
}

// The engine enqueues gathers in the order of their uses, ahead of the device.
bool StepPlay::start_gather() {
  const auto count = static_cast<int>(program_.gathers.size());
  bool went_on = false;
  while (!gather_.busy && gathers_done_ < count && program_.gathers[at(gathers_done_)].there) {
    ++gathers_done_;
    went_on = true;
  }
  if (gather_.busy || gathers_done_ == count) return went_on;
  const GatherUse& use = program_.gathers[at(gathers_done_)];
  // The place is free when the use that had it is done.
  if (turns_done_ <= use.after) return went_on;
  if (use.waits) {
    if (placement().on_device(use.unit) && next_op_ < program_.ops.size() &&
        program_.ops[next_op_].work == SimulatedWork::device_update)
      return went_on;
    if (placement().schedule == Schedule::synchronous && !schedule_.finished()) return went_on;
    if (!has_final_weights(use.unit) || !pieces_.all_of(use.unit, [&](int i) { return on_the_way_[at(i)] == 0; }))
      return went_on;
  }
  if (sends_masters(use.unit) && !std::exchange(masters_here_, false)) {
    if (bringing_masters_ || masters_since_ < forever) return went_on;
    masters_since_ = now_;
    return true;
  }
  start_collective(gather_, use.unit, run_.units[at(use.unit)].gather,
                   {.lane = SimulatedLane::gather, .work = SimulatedWork::all_gather, .unit = use.unit});
  return true;
}

void StepPlay::start_collective(Lane& lane, int unit, double seconds, SimulatedSpan span) {
  lane = {.busy = true, .all = seconds, .left = seconds, .began = now_, .item = unit, .span = span};
}

void StepPlay::finish_reduce() {
  reduce_.busy = false;
  note(reduce_.span, reduce_.began);
  const Reduction done = reductions_.front();
  reductions_.pop_front();
  if (const int slot = reduced_slot(done.unit); slot >= 0) reduced_slot_busy_[at(slot)] = false;
  if (done.last) landed(done.unit);
  if (slot_of(done.unit) >= 0) leave_slot(done.unit, done.first, done.last);
}

void StepPlay::finish_gather() {
  gather_.busy = false;
  note(gather_.span, gather_.began);
  ++gathers_done_;
}

}  // namespace so
