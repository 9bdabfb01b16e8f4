// The optimizer state of one owner's buckets.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "offload/bucket.h"
#include "optim/adamw.h"

namespace so {

enum class StateArray : std::uint8_t { master, first_moment, second_moment };
inline constexpr std::array state_arrays = {StateArray::master, StateArray::first_moment, StateArray::second_moment};

// fp32 master weights and AdamW's moments of those of the buckets that `owner` has: three arrays, bucket after bucket,
// in pageable host memory or in device memory. Contents are unspecified until cleared.
class OptimizerState {
 public:
  OptimizerState(Device& device, Owner owner, std::span<const Bucket> buckets);

  std::int64_t elements() const { return elements_; }
  // Zeros, the padding between parameters included. Host memory is first touched by the threads that will update it.
  void clear(ThreadPool& pool);
  void clear(Stream& stream);  // enqueued

  // From `element` of the flat range on, which lies in `bucket`, one of the owner's.
  AdamWState at(const Bucket& bucket, std::int64_t element) const;
  float* at(StateArray array, const Bucket& bucket, std::int64_t element) const;

 private:
  float* array(StateArray which) const { return static_cast<float*>(arrays_[static_cast<std::size_t>(which)].data()); }

  std::vector<std::int64_t> offsets_;  // per bucket: of its first element in the arrays; -1: another's
  std::int64_t elements_ = 0;
  std::array<Buffer, state_arrays.size()> arrays_;
};

}  // namespace so
