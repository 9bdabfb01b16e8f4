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
                               std::span<const int> slots, HostOptimizer& host, std::function<bool(int)> has_sum)
    : buckets_(buckets),
      slots_of_(slots.begin(), slots.end()),
      first_trained_unit_(layout.first_trained_unit()),
      host_(host),
      has_sum_(std::move(has_sum)),
      buckets_of_(slots.size()),
      slots_(slots.empty() ? 0 : static_cast<std::size_t>(*std::max_element(slots.begin(), slots.end()) + 1)),
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
  Slot& slot = slot_of(unit);
  if (has_sum_(unit) && slot.unit != unit) bring(unit, false);
  if (slot.arriving)
    stream.wait(*slot.arrived);
  else if (slot.unit >= 0)  // also if it is this unit's, which is being copied still
    for (const int index : buckets_of(slot.unit)) host_.require_fetched(bucket(index), stream);
  slot.unit = unit;
  slot.arriving = false;
}

bool MovedGradients::here(int unit) const {
  const Slot& slot = slot_of(unit);
  if (has_sum_(unit) && slot.unit != unit) return false;
  if (slot.arriving) return slot.arrived->done();
  if (slot.unit < 0) return true;
  const std::span<const int> indices = buckets_of(slot.unit);
  return std::all_of(indices.begin(), indices.end(), [&](int index) { return host_.fetched(bucket(index)); });
}

void MovedGradients::complete(int unit, bool last_micro_batch, Stream& stream) {
  SO_CHECK(holds(unit), "a gradient of unit {} is complete that was not required", unit);
  stream.record(*slot_of(unit).written);
  const std::span<const int> indices = buckets_of(unit);
  for (auto index = indices.rbegin(); index != indices.rend() && !last_micro_batch; ++index)
    host_.store_sum(bucket(*index), *slot_of(unit).written);
  if (const int next = next_in_slot(unit, last_micro_batch); next >= 0 && next != unit && has_sum_(next))
    bring(next, last_micro_batch);
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
    const Tensor sum = host_.gradient_of(bucket(*index));
    for (const int other : leaving)
      if (overlap(host_.gradient_of(bucket(other)), sum)) host_.require_fetched(bucket(other), *to_device_);
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
