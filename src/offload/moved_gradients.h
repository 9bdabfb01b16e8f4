// The slots of device memory in which gradients of host-owned units take turns, since they move to host memory as soon
// as they are complete. Where a step has several micro-batches, a unit's sum so far comes back to its slot before its
// next backward pass, which adds to it as if it had stayed. So the sums have the same bits, and the host adds nothing.
//
// The copies run beside the device's work: a gradient leaves while the unit below is worked on, and the sum that has
// the slot next follows it bucket by bucket.
//
// With several ranks the slots are those of this rank's slices, which the reductions write (step_gradients.cpp): it is
// their stream that requires a slot, adds to what is there, and completes it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "offload/memory/gradient_residency.h"
#include "offload/memory/host_gradients.h"
#include "offload/schedule/bucket.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

class MovedGradients final : public GradientResidency {
 public:
  // `slots`: by unit, the number of its slot, -1 of units that do not take turns, of which all calls do nothing. No
  // bucket has parts of two units. `host` stores the gradients; it, the buckets and the slots' memory must outlive
  // this.
  MovedGradients(Device& device, const ParameterLayout& layout, std::span<const Bucket> buckets, std::vector<int> slots,
                 HostGradients& host);
  // Waits for copies under way.
  ~MovedGradients() override;
  MovedGradients(const MovedGradients&) = delete;
  MovedGradients& operator=(const MovedGradients&) = delete;

  void require(int unit, Stream& stream) override;
  bool here(int unit) const override;
  WaitReason reason() const override { return WaitReason::moving; }
  bool holds(int unit) const override { return !has(unit) || (slot_of(unit).unit == unit && !slot_of(unit).arriving); }
  Stream& complete(int, bool, Stream& stream) override { return stream; }
  // Stores the sum, unless its owner has been given it; then enqueues the copy of the one that the slot is to hold
  // next.
  void leave(int unit, bool last, Stream& stream) override;
  void drop() override { summed_.assign(summed_.size(), false); }
  std::int64_t sums_brought() const override { return sums_brought_; }

 private:
  struct Slot {
    int unit = -1;          // whose gradient is there
    bool arriving = false;  // it is a sum that comes from the host, and nobody has required it yet
    std::unique_ptr<Event> written, arrived;
  };
  bool has(int unit) const { return slots_of_[static_cast<std::size_t>(unit)] >= 0; }
  bool has_sum(int unit) const { return summed_[static_cast<std::size_t>(unit)]; }
  Slot& slot_of(int unit) { return slots_[static_cast<std::size_t>(slots_of_[static_cast<std::size_t>(unit)])]; }
  const Slot& slot_of(int unit) const {
    return slots_[static_cast<std::size_t>(slots_of_[static_cast<std::size_t>(unit)])];
  }
  // The host-owned buckets of a unit, in order.
  std::span<const int> buckets_of(int unit) const { return buckets_of_[static_cast<std::size_t>(unit)]; }
  const Bucket& bucket(int index) const { return buckets_[static_cast<std::size_t>(index)]; }
  // Returns the unit whose backward pass uses the slot after `unit`'s; -1 if none does in this micro-batch and the
  // step has no other.
  int next_in_slot(int unit, bool last_micro_batch) const;
  // Enqueues the copy of the unit's sum to its slot, as what is there leaves. `yields`: other copies to the device go
  // between.
  void bring(int unit, bool yields);

  const std::span<const Bucket> buckets_;
  const std::vector<int> slots_of_;  // by unit
  const int first_trained_unit_;
  HostGradients& host_;
  std::vector<std::vector<int>> buckets_of_;  // by unit; none of those that do not take turns
  std::vector<Slot> slots_;
  std::vector<bool> summed_;  // by unit: the host has a sum of this step's micro-batches
  std::int64_t sums_brought_ = 0;
  std::unique_ptr<Stream> to_device_;  // last: its work uses the events
};

}  // namespace so
