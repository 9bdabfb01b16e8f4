// Weights on the device, in the format in which forward and backward read them.
#pragma once

#include "base/weight_piece.h"
#include "offload/memory/parameter_source.h"
#include "offload/memory/unit_array.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

class DeviceWeights final : public WeightSource {
 public:
  // Booked as "weights". Contents are unspecified until loaded.
  // `slots`: units that take turns in a slot (unit_array.h); who has such, fills it before each use.
  DeviceWeights(Device& device, const ParameterLayout& layout, DType dtype, std::span<const int> slots = {});

  void require_weights(int, Stream&) override {}
  void release_weights(int, Stream&) override {}
  Tensor weight(int first, int count = 1) const override { return array_.view(first, count); }

  // The form in which place() wants weights.
  WeightForms forms() const { return {dtype() == DType::f32, dtype() == DType::bf16}; }
  // Enqueues the copy of a piece to its place.
  void place(Stream& stream, const WeightPiece& piece);

  DType dtype() const { return array_.dtype(); }
  std::byte* at(std::int64_t element) const { return array_.at(element); }
  std::size_t bytes() const { return array_.bytes(); }
  std::size_t bytes_of(Range range) const { return static_cast<std::size_t>(range.size()) * size_of(dtype()); }

 private:
  UnitArray array_;
};

}  // namespace so
