#include "offload/moved_gradients.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "device/wait_on_exit.h"

namespace so {
namespace {

// Copied before others go between, as of weights that stream (memory/weight_stream.h).
constexpr std::size_t most_at_once = std::size_t{64} << 20;

bool overlap(const Tensor& a, const Tensor& b) {
  const auto *from = static_cast<const std::byte*>(a.data()), *other = static_cast<const std::byte*>(b.data());
  return from < other + b.bytes() && other < from + a.bytes();
}

}  // namespace

MovedGradients::MovedGradients(Device& device, const ParameterLayout& layout, std::span<const Bucket> buckets,
                               std::vector<int> slots, HostGradients& host)
    : buckets_(buckets),
      slots_of_(std::move(slots)),
      first_trained_unit_(layout.first_trained_unit()),
      host_(host),
      buckets_of_(slots_of_.size()),
      slots_(static_cast<std::size_t>(*std::max_element(slots_of_.begin(), slots_of_.end()) + 1)),
      summed_(slots_of_.size(), false),
      to_device_(device.create_stream("gradient sums")) {
  for (Slot& slot : slots_) {
    slot.written = device.create_event();
    slot.arrived = device.create_event();
  }
  for (const Bucket& b : buckets)
    if (const int unit = layout.unit_of(b.range().begin); has(unit) && b.on_host())
      buckets_of_[static_cast<std::size_t>(unit)].push_back(b.index());
}

MovedGradients::~MovedGradients() { wait_or_log(*to_device_, LogLevel::error); }

void MovedGradients::require(int unit, Stream& stream) {
  if (!has(unit)) return;
  Slot& slot = slot_of(unit);
  if (has_sum(unit) && slot.unit != unit) bring(unit, false);
  if (slot.arriving)
    stream.wait(*slot.arrived);
  else if (slot.unit >= 0)  // also if it is this unit's, which is being copied still
    for (const int index : buckets_of(slot.unit)) stream.wait(host_.fetched(bucket(index)));
  slot.unit = unit;
  slot.arriving = false;
}

bool MovedGradients::here(int unit) const {
  if (!has(unit)) return true;
  const Slot& slot = slot_of(unit);
  if (has_sum(unit) && slot.unit != unit) return false;
  if (slot.arriving) return slot.arrived->done();
  if (slot.unit < 0) return true;
  const std::span<const int> indices = buckets_of(slot.unit);
  return std::all_of(indices.begin(), indices.end(), [&](int index) { return host_.fetched(bucket(index)).done(); });
}

void MovedGradients::leave(int unit, bool last, Stream& stream) {
  if (!has(unit) || !holds(unit)) return;
  stream.record(*slot_of(unit).written);
  const std::span<const int> indices = buckets_of(unit);
  for (auto index = indices.rbegin(); index != indices.rend() && !last; ++index)
    host_.store_sum(bucket(*index), *slot_of(unit).written);
  summed_[static_cast<std::size_t>(unit)] = !last;
  if (const int next = next_in_slot(unit, last); next >= 0 && next != unit && has_sum(next)) bring(next, last);
}

// Backward passes go from the last unit to the first, and the next micro-batch's begins with the last again.
int MovedGradients::next_in_slot(int unit, bool last_micro_batch) const {
  const auto shares = [&](int other) {
    return slots_of_[static_cast<std::size_t>(other)] == slots_of_[static_cast<std::size_t>(unit)];
  };
  for (int other = unit - 1; other >= first_trained_unit_; --other)
    if (shares(other)) return other;
  for (int other = static_cast<int>(slots_of_.size()) - 1; other > unit && !last_micro_batch; --other)
    if (shares(other)) return other;
  return -1;
}

void MovedGradients::bring(int unit, bool yields) {
  Slot& slot = slot_of(unit);
  const std::span<const int> indices = buckets_of(unit), leaving = slot.unit >= 0 && !slot.arriving
                                                                       ? buckets_of(slot.unit)
                                                                       : std::span<const int>();
  if (!leaving.empty()) to_device_->wait(*slot.written);  // what does not leave, since nobody trains it, is in use too
  std::size_t at_once = 0;
  for (auto index = indices.rbegin(); index != indices.rend(); ++index) {
    const Tensor sum = host_.on_device(bucket(*index));
    for (const int other : leaving)
      if (overlap(host_.on_device(bucket(other)), sum)) to_device_->wait(host_.fetched(bucket(other)));
    if (yields && at_once > 0 && at_once + sum.bytes() > most_at_once) {
      to_device_->yield();
      at_once = 0;
    }
    at_once += sum.bytes();
    host_.bring_sum(bucket(*index), *to_device_);
  }
  to_device_->record(*slot.arrived);
  slot.unit = unit;
  slot.arriving = true;
  ++sums_brought_;
}

}  // namespace so
