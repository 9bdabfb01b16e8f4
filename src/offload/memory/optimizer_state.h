// The optimizer state of one owner's buckets.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "offload/memory/state_part.h"
#include "offload/schedule/bucket.h"
#include "offload/schedule/state_places.h"
#include "optim/adamw.h"

namespace so {

inline constexpr std::array state_arrays = {StateArray::master, StateArray::first_moment, StateArray::second_moment};

// fp32 master weights and AdamW's moments, fp32, bf16 or 8-bit codes with scales, of those of the buckets that `owner`
// has (of this rank's slices of them), in host memory, pageable or pinned, or in device memory. Each bucket's state has
// a place; spare places take new state beside the old, and adopting one replaces the old state by it without copying.
// In device memory contents are unspecified until cleared. Calls about different buckets may come from different
// threads; those about spare places, one at a time.
class OptimizerState final : public StatePlaces {
 public:
  // `pool`: of the host's state, the threads that will update it, which touch it first. `spare_places`: how many
  // buckets can have new state beside the old at a time. `pinned`: the device reaches it too.
  struct Host {
    ThreadPool& pool;
    std::int64_t spare_places = 0;
    bool pinned = false;
  };
  // Where moments are codes, no bucket cuts a block. `layout` must outlive it.
  OptimizerState(Device& device, const Host& host, const ParameterLayout& layout, std::span<const Bucket> buckets,
                 DType moments);
  // In device memory.
  OptimizerState(Device& device, const ParameterLayout& layout, std::span<const Bucket> buckets, DType moments);

  DType dtype(StateArray array) const { return array == StateArray::master ? DType::f32 : moments_; }

  // Zeros, the padding between parameters included: what the host has holds them from the beginning.
  void clear(Stream& stream);  // enqueued

  // From `element` of the flat range on, which lies in `bucket`, one of the owner's.
  AdamWState at(const Bucket& bucket, std::int64_t element) const;
  float* master(const Bucket& bucket, std::int64_t element) const;
  // The part of an array that has the elements of `range`, which lies in the bucket.
  StatePart part(StateArray array, const Bucket& bucket, Range range) const;
  // The memory of all that the bucket has, one array's behind another's, scales last; in the same order in other places
  // and in memory of this size for any of the buckets, which places_of_arrays() lists.
  std::vector<std::span<std::byte>> arrays(const Bucket& bucket) const;
  std::vector<std::size_t> array_bytes() const;  // of the largest

  // StatePlaces
  bool has_spare() const override { return !spare_.empty(); }
  int take_spare() override;
  void give_back(int place) override { spare_.push_back(place); }
  void adopt(int place, const Bucket& bucket) override;
  // Like at(), in a place that was taken for the bucket's new state.
  AdamWState beside(int place, const Bucket& bucket, std::int64_t element) const;
  std::vector<std::span<std::byte>> arrays_beside(int place, const Bucket& bucket) const;
  // The state in memory of its own, an address for each array, of all the bucket's own slice.
  AdamWState state_at(std::span<void* const> arrays) const;
  // Zeros in such a place, in host memory: elements `range` of the flat range.
  void clear(int place, const Bucket& bucket, Range range);

 private:
  OptimizerState(Device& device, Owner owner, MemoryKind kind, const ParameterLayout& layout,
                 std::span<const Bucket> buckets, DType moments, std::int64_t spare_places, const Device::Touch& touch);
  // Elements of the arrays, and blocks of those of scales.
  struct Extent {
    std::int64_t elements = 0, blocks = 0;
  };
  // The arrays of `state_arrays`, then those of the two moments' scales, which have no memory where there are none.
  static constexpr std::size_t array_count = state_arrays.size() + 2;
  static constexpr std::size_t index_of(StateArray array) { return static_cast<std::size_t>(array); }
  static constexpr std::size_t scales_of(StateArray moment) { return index_of(moment) + 2; }
  using Arrays = std::array<Buffer, array_count>;
  std::size_t bytes_of(std::size_t array, const Extent& extent) const;
  Extent extent_of(const Bucket& bucket) const;
  int place_of(const Bucket& bucket) const { return places_[static_cast<std::size_t>(bucket.index())]; }
  std::byte* at(std::size_t array, int place, const Extent& before) const;
  std::vector<std::span<std::byte>> arrays_in(int place, const Bucket& bucket) const;
  // What of the bucket lies before an element.
  Extent before(const Bucket& bucket, std::int64_t element) const;

  const ParameterLayout& layout_;
  DType moments_;
  Arrays state_, spare_state_;  // places of the buckets at first, and the spare ones
  Extent place_;                // of a place in spare_state_
  std::vector<Extent> starts_;  // of the places in state_; the others follow in spare_state_
  std::vector<int> places_;     // by bucket; -1: another owner's
  std::vector<int> spare_;
};

}  // namespace so
