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
#include "offload/schedule/gradient_places.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

class UnitGradients {
 public:
  // Frozen parameters take no memory, unless they are joined to a trained one. Booked as "gradients" and "gradient
  // slices". Where the model writes another format than sums over several `ranks` have, no bucket has parts of two
  // units.
  UnitGradients(Device& device, const ParameterLayout& layout, const NumberFormats& formats,
                const GradientPlaces& places, std::span<const Bucket> buckets, int ranks)
      : places_(device, layout, formats.gradients, places.slots, "gradients", UnitArray::Of::gradients),
        sliced_(places.sliced),
        own_dtype_(ranks > 1 ? formats.rank_sums : formats.gradients),
        slices_(device, layout, own_dtype_, buckets,
                own_dtype_ == dtype() ? sliced_ : std::vector<bool>(sliced_.size(), true), "gradient slices",
                SliceArray::Of::trained, places.slice_slots) {}

  // Where the model writes them.
  const UnitArray& places() const { return places_; }
  DType dtype() const { return places_.dtype(); }
  // Whether the unit takes turns, so that each micro-batch's gradient is reduced.
  bool sliced(int unit) const { return sliced_[static_cast<std::size_t>(unit)]; }
  // What the gradient that is used for the update is in.
  DType own_dtype() const { return own_dtype_; }
  // The gradient that is used for the update, from an element of this rank's slices on; the rest of the bucket's slice
  // lies behind.
  std::byte* own_at(std::int64_t element) const {
    std::byte* const slice = slices_.at(element);
    return slice ? slice : places_.at(element);
  }

 private:
  UnitArray places_;
  std::vector<bool> sliced_;
  DType own_dtype_;
  SliceArray slices_;
};

}  // namespace so
