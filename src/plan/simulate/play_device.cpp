#include <utility>

#include "plan/simulate/step_play.h"

namespace so {

bool StepPlay::may_start(const DeviceOp& op) {
  for_collective_ = false;
  const auto wait_for = [&](WaitReason reason) {
    waits_for_ = reason;
    return false;
  };
  if (op.unit < 0) return true;
  if (op.work == SimulatedWork::forward && op.first) {
    if (needed_at_[at(op.unit)] < 0) needed_at_[at(op.unit)] = phase_;
    if (placement().schedule == Schedule::synchronous && begins_pass(op.unit) && !schedule_.finished())
      return wait_for(WaitReason::host);
    if (!has_final_weights(op.unit)) return wait_for(WaitReason::host);
    if (!pieces_.all_of(op.unit, [&](int i) { return on_the_way_[at(i)] == 0; })) return wait_for(WaitReason::link);
  }
  if (op.gather >= gathers_done_) {
    for_collective_ = true;
    return wait_for(is_gathered(placement().unit(op.unit).weights) ? WaitReason::stream : WaitReason::link);
  }
  if (op.use >= uses_there_) return wait_for(WaitReason::stream);
  if (op.work == SimulatedWork::backward) {
    if (op.first && !pieces_.all_of(op.unit, [&](int i) { return schedule_.needs_no_gradient(pieces_[i]); }))
      return wait_for(WaitReason::gradient);
    if (const int slot = reduced_slot(op.unit); slot >= 0) {
      for_collective_ = reduced_slot_busy_[at(slot)];
      if (for_collective_) return wait_for(WaitReason::gradient);
    } else if (!slot_is_ready(op.unit, op.first)) {
      return wait_for(WaitReason::moving);
    }
  }
  return true;
}

bool StepPlay::start_device() {
  if (device_.busy) return false;
  if (next_op_ == program_.ops.size()) {
    // The verdict waits for the gradients' sums.
    if (reducing() && wait_began_ < 0) {
      waits_for_ = WaitReason::verdict;
      for_collective_ = true;
      wait_began_ = now_;
    }
    return false;
  }
  const DeviceOp& op = program_.ops[next_op_];
  // The engine chooses when the first gradient comes, unless the last micro-batch's forward pass waits for the host.
  // Only a single micro-batch's may, for which begin_step() has asked already.
  if (op.last && op.work == SimulatedWork::backward && !asked_) ask();
  const WaitReason before = waits_for_;
  if (!may_start(op)) {
    if (wait_began_ >= 0 && waits_for_ != before) end_wait(before);
    if (wait_began_ < 0) wait_began_ = now_;
    return false;
  }
  end_wait(before);
  if (const int slot = op.work == SimulatedWork::backward ? reduced_slot(op.unit) : -1; slot >= 0)
    reduced_slot_busy_[at(slot)] = true;
  if (op.work == SimulatedWork::backward && op.first) {
    for (int i = pieces_.first_of(op.unit); i < pieces_.first_of(op.unit + 1); ++i) schedule_.land(pieces_[i]);
  }
  if (const int slot = op.work == SimulatedWork::backward && !several_ranks_ ? slot_of(op.unit) : -1; slot >= 0)
    slots_[at(slot)] = {.unit = op.unit};
  double seconds = op.seconds;
  if (op.times > 0) {  // each like the one that was played last, and its waits
    const auto n = static_cast<double>(op.times);
    const double waited = micro_waited_;
    seconds = n * (program_.pass_seconds + waited);
    step_.host_bytes += n * micro_copied_;
    step_.waits[static_cast<std::size_t>(WaitReason::stream)] += n * (waited - micro_for_moving_);
    step_.waits[static_cast<std::size_t>(WaitReason::moving)] += n * micro_for_moving_;
    step_.collective_waits += n * micro_for_collectives_;
    step_.collectives += n * program_.pass_collectives;
    step_.device -= n * waited;  // what follows counts all of it
  }
  device_.busy = true;
  device_.began = now_;
  device_ends_ = now_ + seconds;
  step_.device += seconds;
  if (op.work == SimulatedWork::forward && begins_pass(op.unit))
    micro_waited_ = micro_for_moving_ = micro_for_collectives_ = micro_copied_ = 0;
  return true;
}

void StepPlay::end_wait(WaitReason reason) {
  if (wait_began_ >= 0 && now_ > wait_began_)
    note({.work = SimulatedWork::wait,
          .reason = reason,
          .unit = next_op_ < program_.ops.size() ? program_.ops[next_op_].unit : -1},
         wait_began_);
  wait_began_ = -1;
}

void StepPlay::finish_device() {
  const DeviceOp& op = program_.ops[next_op_++];
  device_.busy = false;
  note({.work = op.work, .unit = op.unit}, device_.began);
  if (op.use >= 0) ++uses_done_;
  if (op.work == SimulatedWork::device_update) phase_ = 0;
  if (op.gather >= 0 && program_.gathers[at(op.gather)].turn >= 0) ++turns_done_;
  if (op.work != SimulatedWork::backward) return;
  if (several_ranks_ && (op.last || placement().unit(op.unit).sliced))
    reductions_.push_back({op.unit, op.first, op.last});
  if (op.last && !several_ranks_) landed(op.unit);
  if (slot_of(op.unit) >= 0 && !several_ranks_) leave_slot(op.unit, op.first, op.last);
  if (!op.last) return;
  if (!first_gradient_) {
    first_gradient_ = true;
    forward_seconds_ = std::exchange(phase_, 0);
    if (!several_ranks_) landed_at_[at(op.unit)] = 0;
  }
}

void StepPlay::landed(int unit) {
  landed_at_[at(unit)] = phase_;
  for (Bucket* piece : schedule_.landing_order(pieces_.of(unit))) {
    schedule_.landed(*piece);
    if (moves_) fetch(piece->index(), run_.bytes.gradient);
  }
}

}  // namespace so
