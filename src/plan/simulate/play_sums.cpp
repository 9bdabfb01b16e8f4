#include <algorithm>

#include "base/error.h"
#include "plan/simulate/step_play.h"

namespace so {

bool StepPlay::slot_is_ready(int unit, bool first) const {
  const int number = slot_of(unit);
  if (number < 0) return true;
  const GradientSlot& slot = slots_[at(number)];
  SO_CHECK(first || slot.unit == unit, "unit {} adds to a sum that is not there", unit);
  if (slot.arrives) return slot.to_come == 0;
  return slot.unit < 0 || pieces_.all_of(slot.unit, [&](int i) { return fetched_[at(i)]; });
}

// The engine enqueues the copies of a micro-batch ahead of the device, so the next sum may follow what leaves.
void StepPlay::leave_slot(int unit, bool first, bool last) {
  const int left = pieces_.first_of(unit), left_end = pieces_.first_of(unit + 1);
  for (int i = left_end; i-- > left && !last;) {
    fetch(i, run_.bytes.sum);
    micro_copied_ += weigh(i, run_.bytes.sum);
  }
  const auto shares = [&](int other) { return slot_of(other) == slot_of(unit); };
  int next = -1;
  bool has_sum = !first;
  for (int other = unit - 1; other >= run_.first_trained_unit && next < 0; --other)
    if (shares(other)) next = other;
  if (next < 0 && !last) {
    has_sum = true;
    for (int other = static_cast<int>(run_.units.size()) - 1; other > unit && next < 0; --other)
      if (shares(other)) next = other;
  }
  if (next < 0 || !has_sum) return;
  const int begin = pieces_.first_of(next), end = pieces_.first_of(next + 1), count = end - begin,
            leaving = left_end - left;
  slots_[at(slot_of(unit))] = {.unit = next, .to_come = count, .arrives = true};
  // Highest first, both; a piece comes when those that lie where it does have left.
  for (int i = 0; i < count; ++i)
    sums_.push_back(
        {end - 1 - i, leaving == 0 ? -1 : left_end - std::max(1, ((i + 1) * leaving + count - 1) / count), now_});
}

bool StepPlay::sum_may_come() const {
  if (sums_.empty()) return false;
  const Sum& sum = sums_.front();
  return fetched_[at(sum.piece)] && (sum.after < 0 || fetched_[at(sum.after)]);
}

void StepPlay::start_sum() {
  const int piece = sums_.front().piece;
  sums_.pop_front();
  bringing_sum_ = true;
  micro_copied_ += weigh(piece, run_.bytes.sum);
  start(to_device_, piece, weigh(piece, run_.bytes.sum),
        {.lane = SimulatedLane::to_device, .work = SimulatedWork::bring_sum, .unit = pieces_.unit_of(piece)});
}

}  // namespace so
