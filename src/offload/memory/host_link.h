// The ways between device and host of gradients and weights of the buckets that the host owns: a stream each way, which
// casts on the device where the settings say so, and pinned memory through which buckets travel, so that while some are
// updated, the gradient of the next arrives and the weights of those before leave.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/tensor.h"
#include "device/device.h"
#include "offload/schedule/bucket.h"
#include "offload/schedule/schedule.h"
#include "optim/engine_ops.h"

namespace so {

class HostLink {
 public:
  // For those of the buckets that the host owns; if there are none nothing travels. `gradients` and `weights` as they
  // lie on the device. Slots have memory for gradients only if these are `fetched`, not stored (HostGradients).
  HostLink(Device& device, std::span<const Bucket> buckets, DType gradients, DType weights, CastSide cast,
           bool fetched);
  // Waits for copies under way.
  ~HostLink() { wait(); }
  HostLink(const HostLink&) = delete;
  HostLink& operator=(const HostLink&) = delete;

  // As they are on the host.
  DType gradients() const { return gradients_; }
  DType weights() const { return weights_; }
  // Elements of the longest of these buckets, 0 of none.
  std::int64_t longest() const { return longest_; }

  struct Slot {
    Buffer gradient, weights;
    std::unique_ptr<Event> weights_gone;
  };
  // Buckets take the slots in turn. One whose turn is at most `ahead` before another's is not disturbed by it.
  static constexpr std::size_t ahead = 4;
  Slot& next_slot() { return slots_[turn_++ % slots_.size()]; }

  // Enqueues the copy of a gradient from the device to pinned memory, once it is `complete` there. `fetched` marks that
  // it has arrived. One thread at a time; beside it another may give().
  void fetch(void* to, const Tensor& gradient, Event& complete, Event& fetched);
  // The same of a gradient to which others are added later: it is copied as it lies on the device.
  void store(void* to, const Tensor& gradient, Event& complete, Event& stored);
  // Enqueues the copy of the slot's weights to the device, where `arrived` marks their arrival.
  void give(Slot& slot, const Tensor& weights, Event& arrived);
  // Waits for what is under way. An error of it is logged.
  void wait() const;

 private:
  // One direction.
  struct Way {
    std::unique_ptr<Stream> stream;
    Buffer wide;  // fp32, on the device; only where the device casts
  };

  const DType gradients_, weights_;
  const std::int64_t longest_;
  const std::unique_ptr<EngineOps> ops_;
  std::vector<Slot> slots_;
  std::size_t turn_ = 0;
  Way to_host_, to_device_;
};

}  // namespace so
