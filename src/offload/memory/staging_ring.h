// The way between device and host of the buckets that the host updates: pinned memory through which they travel, so
// that while some are updated, the gradient of the next arrives and the weights of those before leave; and the streams
// that move them.
#pragma once

#include <memory>
#include <vector>

#include "base/dtype.h"
#include "base/tensor.h"
#include "device/device.h"
#include "offload/memory/unit_array.h"
#include "offload/schedule/schedule.h"
#include "optim/engine_ops.h"

namespace so {

class StagingRing {
 public:
  struct Slot {
    Buffer gradient, weights;
    std::unique_ptr<Event> weights_gone;
  };

  // For buckets of at most `elements`; 0: no ring. `gradients` and `weights` as they lie on the device. Slots have
  // memory for gradients only if they are `fetched`, not stored.
  StagingRing(Device& device, std::int64_t elements, DType gradients, DType weights, CastSide cast, bool fetched);
  // Waits for copies under way, which use the slots.
  ~StagingRing();

  // As they are on the host.
  DType gradients() const { return gradients_; }
  DType weights() const { return weights_; }

  // Buckets take the slots in turn. One whose turn is at most `ahead` before another's is not disturbed by it.
  static constexpr std::size_t ahead = 4;
  Slot& slot(std::size_t turn) { return slots_[turn % slots_.size()]; }

  // Enqueues the copy of a gradient from the device to pinned memory, a slot's or other, once it is `complete` there.
  // `fetched` marks that it has arrived. One thread at a time; beside it another may give().
  void fetch(void* to, Tensor gradient, Event& complete, Event& fetched);
  // The same of a gradient to which others are added later: it is copied as it lies on the device.
  void store(void* to, const Tensor& gradient, Event& complete, Event& stored);
  // Enqueues the copy of the slot's weights to the device, where `arrived` marks their arrival.
  void give(Slot& slot, Tensor weights, Event& arrived);

 private:
  // One direction.
  struct Way {
    std::unique_ptr<Stream> stream;
    Buffer wide;  // fp32, on the device; only where the device casts
  };

  DType gradients_, weights_;
  const std::unique_ptr<EngineOps> ops_;
  std::vector<Slot> slots_;
  Way to_host_, to_device_;
};

}  // namespace so
