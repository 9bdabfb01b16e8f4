// The gradients of the buckets that the host owns, as they leave the device. Either each is fetched when the host works
// on it; or they move: all of them have pinned memory, to which each leaves as soon as it is complete, and in which a
// step's sum waits for its further micro-batches.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "offload/memory/host_link.h"
#include "offload/memory/unit_gradients.h"
#include "offload/schedule/bucket.h"

namespace so {

class HostGradients {
 public:
  // `pool` touches the pinned memory first. All references must outlive this.
  HostGradients(Device& device, ThreadPool& pool, std::span<const Bucket> buckets, const UnitGradients& gradients,
                HostLink& link, bool moves);
  // Waits for copies under way.
  ~HostGradients() { link_.wait(); }
  HostGradients(const HostGradients&) = delete;
  HostGradients& operator=(const HostGradients&) = delete;

  bool moves() const { return moves_; }
  // Where the bucket's gradient is on the device; and in pinned memory, null if it does not move.
  Tensor on_device(const Bucket& bucket) const { return gradients_.own(bucket); }
  std::byte* stored(const Bucket& bucket) const { return stored_[at(bucket)]; }
  // The last copy of it from the device to the host, whoever enqueues it.
  Event& fetched(const Bucket& bucket) const { return *fetched_[at(bucket)]; }

  // Enqueues its way to pinned memory, in the form in which it is used for the update, once it is `complete`.
  void store(const Bucket& bucket, Event& complete) {
    link_.fetch(stored(bucket), on_device(bucket), complete, fetched(bucket));
  }
  // The same of a sum so far, as it lies on the device.
  void store_sum(const Bucket& bucket, Event& complete) {
    link_.store(stored(bucket), on_device(bucket), complete, fetched(bucket));
  }
  // Enqueues on `stream` the copy of what store_sum() has stored to the device, when it is there.
  void bring_sum(const Bucket& bucket, Stream& stream) const;

 private:
  static std::size_t at(const Bucket& bucket) { return static_cast<std::size_t>(bucket.index()); }

  const UnitGradients& gradients_;
  HostLink& link_;
  const bool moves_;
  Buffer store_;
  std::vector<std::byte*> stored_;               // by bucket
  std::vector<std::unique_ptr<Event>> fetched_;  // by bucket; null for those of others
};

}  // namespace so
