// Device memory for this rank's slices of the buckets of some units, one bucket's behind another's. Slices of units
// that take turns in a place last until the next unit's come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "offload/schedule/bucket.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

class SliceArray {
 public:
  enum class Of : std::uint8_t { all, trained };  // buckets that nobody owns have no place then

  // `units`: by unit, whether its slices lie here; no bucket has parts of such a unit and of another. `slots`: by unit,
  // the place that its slices take in turn with others' (offload/schedule/placement.h); empty: all have their
  // own. Booked as `name`. `layout` and `buckets` must outlive it.
  SliceArray(Device& device, const ParameterLayout& layout, DType dtype, std::span<const Bucket> buckets,
             const std::vector<bool>& units, std::string name, Of of = Of::all, std::span<const int> slots = {});

  bool empty() const { return !memory_; }  // no unit's
  bool has(int unit) const { return units_[static_cast<std::size_t>(unit)]; }
  // The address of an element of a slice; the rest of the slice lies behind it. Null if the element's unit has no
  // slices here.
  std::byte* at(std::int64_t element) const;
  // Of all buckets, the one that has this element.
  const Bucket& bucket_of(std::int64_t element) const;

 private:
  const ParameterLayout& layout_;
  const DType dtype_;
  const std::span<const Bucket> buckets_;
  const std::vector<bool> units_;
  std::vector<std::int64_t> starts_;  // by bucket, in elements of the memory
  Buffer memory_;
};

}  // namespace so
