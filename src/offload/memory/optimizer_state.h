// The optimizer state of one owner's buckets.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "device/device.h"
#include "offload/schedule/bucket.h"
#include "offload/schedule/state_places.h"
#include "optim/adamw.h"

namespace so {

enum class StateArray : std::uint8_t { master, first_moment, second_moment };
inline constexpr std::array state_arrays = {StateArray::master, StateArray::first_moment, StateArray::second_moment};

// Bytes of state an element: its fp32 master weight and two moments.
inline std::size_t state_bytes(DType moments) { return sizeof(float) + 2 * size_of(moments); }

// fp32 master weights and AdamW's moments, fp32 or bf16, of those of the buckets that `owner` has (of this rank's
// slices of them), in host memory, pageable or pinned, or in device memory. Each bucket's state has a place; spare
// places take new state beside the old, and adopting one replaces the old state by it without copying. In device memory
// contents are unspecified until cleared. Calls about different buckets may come from different threads; those about
// spare places, one at a time.
class OptimizerState final : public StatePlaces {
 public:
  // `pool`: of the host's state, the threads that will update it, which touch it first. `spare_places`: how many
  // buckets can have new state beside the old at a time. `pinned`: the device reaches it too.
  struct Host {
    ThreadPool& pool;
    std::int64_t spare_places = 0;
    bool pinned = false;
  };
  OptimizerState(Device& device, const Host& host, std::span<const Bucket> buckets, DType moments);
  // In device memory.
  OptimizerState(Device& device, std::span<const Bucket> buckets, DType moments);

  DType dtype(StateArray array) const { return array == StateArray::master ? DType::f32 : moments_; }

  // Zeros, the padding between parameters included: what the host has holds them from the beginning.
  void clear(Stream& stream);  // enqueued

  // From `element` of the flat range on, which lies in `bucket`, one of the owner's.
  AdamWState at(const Bucket& bucket, std::int64_t element) const;
  float* master(const Bucket& bucket, std::int64_t element) const;
  // As a tensor of `range`, which lies in the bucket.
  Tensor part(StateArray array, const Bucket& bucket, Range range) const;

  // StatePlaces
  bool has_spare() const override { return !spare_.empty(); }
  int take_spare() override;
  void give_back(int place) override { spare_.push_back(place); }
  void adopt(int place, const Bucket& bucket) override;
  // Like at(), in a place that was taken for the bucket's new state.
  AdamWState beside(int place, const Bucket& bucket, std::int64_t element) const;
  Tensor part_beside(StateArray array, int place, const Bucket& bucket) const;  // of all the bucket's own slice
  // Zeros in such a place, in host memory: elements `range` of the flat range.
  void clear(int place, const Bucket& bucket, Range range);

 private:
  OptimizerState(Device& device, Owner owner, MemoryKind kind, std::span<const Bucket> buckets, DType moments,
                 std::int64_t spare_places, const Device::Touch& touch);
  using Arrays = std::array<Buffer, state_arrays.size()>;
  std::byte* at(StateArray array, int place, std::int64_t offset) const;
  std::int64_t offset_in(const Bucket& bucket, std::int64_t element) const;

  DType moments_;
  Arrays state_, spare_state_;        // places of the buckets at first, and the spare ones
  std::int64_t place_elements_ = 0;   // of a place in spare_state_
  std::vector<std::int64_t> starts_;  // of the places in state_, in elements; the others follow in spare_state_
  std::vector<int> places_;           // by bucket; -1: another owner's
  std::vector<int> spare_;
};

}  // namespace so
