// The slots of device memory in which gradients of host-owned units take turns, since they move to host memory as soon
// as they are complete. Where a step has several micro-batches, a unit's sum so far comes back to its slot before its
// next backward pass, which adds to it as if it had stayed. So the sums have the same bits, and the host adds nothing.
//
// The copies run beside the device's work: a gradient leaves while the unit below is worked on, and the sum that has
// the slot next follows it bucket by bucket. The engine's thread makes all calls.
//
// With several ranks the slots are those of this rank's slices, which the reductions write: it is their stream that
// requires a slot, adds to what is there, and completes it.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "offload/host_optimizer.h"
#include "offload/schedule/bucket.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

class MovedGradients {
 public:
  // `slots`: by unit, the number of its slot, -1 of units that do not take turns. `has_sum`: whether this step has
  // written gradients of the unit, or with several ranks reduced some. No bucket has parts of two units. `host` stores
  // the gradients; it, the buckets and the slots' memory must outlive this.
  MovedGradients(Device& device, const ParameterLayout& layout, std::span<const Bucket> buckets,
                 std::span<const int> slots, HostOptimizer& host, std::function<bool(int unit)> has_sum);
  // Waits for copies under way.
  ~MovedGradients();
  MovedGradients(const MovedGradients&) = delete;
  MovedGradients& operator=(const MovedGradients&) = delete;

  bool has(int unit) const { return slots_of_[static_cast<std::size_t>(unit)] >= 0; }
  // Work that follows on `stream` may write the unit's gradient into its slot: the one that was there has moved, and
  // if this step has a sum of it, the slot holds that. Does not block.
  void require(int unit, Stream& stream);
  // Whether the stream would not wait.
  bool here(int unit) const;
  // Whether the slot is the unit's, by require().
  bool holds(int unit) const { return slot_of(unit).unit == unit && !slot_of(unit).arriving; }

  // The gradient is complete on `stream` and leaves the slot: by HostOptimizer::landed(), which has been called, if it
  // is of the step's last micro-batch; else here. Then enqueues the copy of the sum that the slot is to hold next.
  void complete(int unit, bool last_micro_batch, Stream& stream);

  std::int64_t sums_brought() const { return sums_brought_; }  // units whose sums came back; total

 private:
  struct Slot {
    int unit = -1;          // whose gradient is there
    bool arriving = false;  // it is a sum that comes from the host, and nobody has required it yet
    std::unique_ptr<Event> written, arrived;
  };
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
  HostOptimizer& host_;
  const std::function<bool(int)> has_sum_;
  std::vector<std::vector<int>> buckets_of_;  // by unit; none of those that do not take turns
  std::vector<Slot> slots_;
  std::int64_t sums_brought_ = 0;
  std::unique_ptr<Stream> to_device_;  // last: its work uses the events
};

}  // namespace so
