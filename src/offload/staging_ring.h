// Pinned memory through which the buckets that the host updates travel: while one is updated, the gradients of the next
// two arrive and the weights of the one before leave.
#pragma once

#include <memory>
#include <vector>

#include "base/dtype.h"
#include "device/device.h"
#include "offload/unit_array.h"

namespace so {

class StagingRing {
 public:
  struct Slot {
    Buffer gradient, weights;
    std::unique_ptr<Event> gradient_here, weights_gone;
  };

  // For buckets of at most `elements`; 0: no ring. `gradients` as they lie on the device; null: they do not come this
  // way.
  StagingRing(Device& device, std::int64_t elements, const UnitArray* gradients, DType weights);
  // Waits for copies under way, which use the slots.
  ~StagingRing();

  // Buckets take the slots in turn. One whose turn is at most `ahead` before another's is not disturbed by it.
  static constexpr std::size_t ahead = 3;
  Slot& slot(std::size_t turn) { return slots_[turn % slots_.size()]; }

  // Enqueues the copy of a gradient from the device into the slot, once it is `complete` there. `fetched` marks that it
  // has been read.
  void fetch(Slot& slot, const void* gradient, std::size_t bytes, Event& complete, Event& fetched);
  // Waits until the slot's gradient has arrived and its memory for weights is free.
  void wait(Slot& slot);
  // Enqueues the copy of the slot's weights to the device, where `arrived` marks their arrival.
  void give(Slot& slot, void* weights, std::size_t bytes, Event& arrived);
  // Waits until all weights given have arrived.
  void finish_giving();

 private:
  std::vector<Slot> slots_;
  std::unique_ptr<Stream> to_host_, to_device_;
};

}  // namespace so
