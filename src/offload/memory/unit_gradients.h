// The gradients of all units on the device. Most units have a place of their own, whose gradient is whole; with several
// ranks this rank's slice of it becomes the sum over ranks. Units in slices take turns in a few places instead, from
// which each micro-batch's gradient is reduced and added to this rank's slices; if it moves to host memory from there,
// the slices take turns too. Where sums over ranks are fp32 and the model's gradients bf16 every unit has slices, which
// take the sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/number_formats.h"
#include "offload/memory/slice_array.h"
#include "offload/memory/unit_array.h"
#include "offload/schedule/bucket.h"
#include "offload/schedule/parameter_layout.h"
#include "offload/schedule/placement.h"

namespace so {

class UnitGradients {
 public:
  // Frozen parameters take no memory, unless they are joined to a trained one. Booked as "gradients" and "gradient
  // slices". Where the model writes another format than sums over several ranks have, no bucket has parts of two
  // units.
  UnitGradients(Device& device, const ParameterLayout& layout, const NumberFormats& formats, const Placement& placement,
                std::span<const Bucket> buckets)
      : places_(device, layout, formats.gradients, turns_of(placement).gradients, "gradients",
                UnitArray::Of::gradients),
        own_dtype_(placement.ranks > 1 ? formats.rank_sums : formats.gradients),
        slices_(device, layout, own_dtype_, buckets, with_slices(placement, own_dtype_ != dtype()), "gradient slices",
                SliceArray::Of::trained, turns_of(placement).slices) {}

  // Where the model writes them.
  const UnitArray& places() const { return places_; }
  DType dtype() const { return places_.dtype(); }
  // The format of the gradient that is used for the update.
  DType own_dtype() const { return own_dtype_; }
  // The gradient that is used for the update, from an element of this rank's slices on; the rest of the bucket's slice
  // lies behind.
  std::byte* own_at(std::int64_t element) const {
    std::byte* const slice = slices_.at(element);
    return slice ? slice : places_.at(element);
  }
  // The same as a tensor, of elements that lie in one of its slices; or of all of a bucket's.
  Tensor own(Range range) const { return {own_at(range.begin), own_dtype_, {range.size()}}; }
  Tensor own(const Bucket& bucket) const { return own(bucket.own()); }

 private:
  static std::vector<bool> with_slices(const Placement& placement, bool all) {
    std::vector<bool> units;
    for (const UnitPlacement& unit : placement.units) units.push_back(all || unit.sliced);
    return units;
  }

  UnitArray places_;
  DType own_dtype_;
  SliceArray slices_;
};

}  // namespace so
