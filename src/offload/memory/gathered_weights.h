// Weights of which each rank's device keeps its own slice alone (ZeRO-3). Each use gathers a unit's slices from all
// ranks into one of the places of device memory that gathered units take in turn, and the next unit is gathered while
// the device works with one.
//
// Gathers are collectives, so all ranks must begin them in the same order, whatever the times at which their hosts have
// updated their slices. Which unit is gathered next, and into which place, is therefore decided by the order of calls
// alone. If this rank's slice is not final at that moment, the gather begins later, but before any other.
//
// Units may have no slices: a rank's own is cast from its master weights to where it belongs among the gathered
// weights, as a gather begins.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "offload/memory/device_weights.h"
#include "offload/memory/slice_array.h"
#include "offload/memory/weight_residency.h"
#include "offload/schedule/bucket.h"
#include "offload/schedule/placement.h"

namespace so {

// A bucket's weights, which come to `all` from all ranks; from this one its slice at `own` does.
struct BucketGather {
  const Bucket* bucket;
  const std::byte* own;  // it may lie at its place in `all` already
  std::byte* all;
};

// The traffic between ranks as gathered weights need it, and what the owners of weights know of this rank's slices.
struct UnitGathers {
  // The stream on which all weights are gathered.
  std::function<Stream&()> stream;
  // Whether the slices of a gathered unit are final on this rank, or will be in the order of a stream; never waits.
  std::function<bool(int unit)> sent;
  // Work that follows on stream() finds them, or their masters. Waits for the host to send them.
  std::function<void(int unit)> require_sent;
  // Enqueues on stream(): this rank's slices of a unit that keeps none are made of their masters in their place.
  std::function<void(int unit)> cast_masters;
  // Enqueues them on stream().
  std::function<void(std::span<const BucketGather> gathers)> gather;
  // Whether another unit's weights are whole, so that nothing need be gathered for its next use. The order of calls
  // alone decides it.
  std::function<bool(int unit)> whole;
};

class GatheredWeights final : public WeightResidency {
 public:
  // `weights` has a slot for each unit that is gathered (turns_of()). No bucket has parts of two
  // units. The slices lie in device memory, booked as "weight slices"; contents are unspecified until written.
  // `weights` and `buckets` outlive this.
  GatheredWeights(Device& device, const ParameterLayout& layout, const DeviceWeights& weights,
                  std::span<const Bucket> buckets, std::span<const UnitPlacement> units, UnitGathers gathers);

  // WeightResidency
  void require(int unit, Stream& stream) override;
  void release(int unit, Stream& stream) override;
  bool here(int unit) const override;
  WaitReason reason() const override { return WaitReason::stream; }
  void prefetch(const PassOrder& pass) override;
  void finish_prefetch() override;
  // Places the elements that lie in this rank's slices; the others are gathered.
  void place(Stream& stream, Range part, const void* weights) override;
  void drop(int unit) override;
  void drop_all() override;
  bool gathers() const override { return true; }
  std::byte* slice(std::int64_t element) const override { return slices_.at(element); }
  bool follows_masters(int unit) const override { return !slices_.has(unit); }
  std::int64_t copies() const override { return copies_; }

 private:
  static constexpr int none = -1;
  struct Place {
    int unit = none;      // whose weights are there, or will be once what was decided is done
    bool in_use = false;  // between require() and release()
    std::unique_ptr<Event> arrived, free;
  };
  bool has(int unit) const { return turns_[static_cast<std::size_t>(unit)] != none; }
  Place& place(int unit) { return places_[turn_of(unit)]; }
  const Place& place(int unit) const { return places_[turn_of(unit)]; }
  std::size_t turn_of(int unit) const {
    return static_cast<std::size_t>(turns_[static_cast<std::size_t>(unit)]) % places_.size();
  }
  int next_of(const PassOrder& pass) const;
  void gather(int unit);

  const ParameterLayout& layout_;
  const DeviceWeights& weights_;
  const UnitGathers gathers_;
  const SliceArray slices_;
  std::vector<int> turns_;  // by unit: its number among the gathered ones, or none
  bool empty_ = true;       // no unit is gathered
  std::array<Place, gather_places> places_;
  int decided_ = none;  // the unit whose gather is the next to begin
  std::int64_t copies_ = 0;
};

}  // namespace so
