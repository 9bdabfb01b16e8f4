// Weights on the device, in the format in which forward and backward read them.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/weight_piece.h"
#include "offload/memory/parameter_source.h"
#include "offload/memory/unit_array.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

// Where a weight lies that is not the engine's, and its own format, f32 or bf16.
struct WeightPlace {
  void* data = nullptr;
  DType dtype = DType::f32;
};

class DeviceWeights final : public WeightSource {
 public:
  // Booked as "weights". Contents are unspecified until loaded.
  // `slots`: units that take turns in a slot (unit_array.h); who has such, fills it before each use.
  // `places`: by parameter, weights in memory of the caller's (caller_weights.h), beside which there is none here.
  DeviceWeights(Device& device, const ParameterLayout& layout, DType dtype, std::span<const int> slots = {},
                std::span<const WeightPlace> places = {});

  void require_weights(int, Stream&) override {}
  void release_weights(int, Stream&) override {}
  Tensor weight(int first, int count = 1) const override;

  // The form in which place() wants weights.
  WeightForms forms() const { return {dtype() == DType::f32, dtype() == DType::bf16}; }
  // Enqueues the copy of a piece to its place.
  void place(Stream& stream, const WeightPiece& piece);

  DType dtype() const { return dtype_; }  // in which they are computed and travel
  std::byte* at(std::int64_t element) const { return array().at(element); }
  bool are_callers() const { return !array_; }
  // body(part, weights) for what `range` has of each parameter in the caller's memory, in the parameter's own format.
  template <class Body>
  void for_each_part(Range range, const Body& body) const {
    for (int p = layout_.first_ending_after(range.begin); p < layout_.count(); ++p) {
      const Range part = common(layout_.range(p), range);
      if (part.size() <= 0) return;
      const WeightPlace& place = places_[static_cast<std::size_t>(p)];
      const auto offset = static_cast<std::size_t>(part.begin - layout_.range(p).begin) * size_of(place.dtype);
      body(part, Tensor(static_cast<std::byte*>(place.data) + offset, place.dtype, {part.size()}));
    }
  }
  std::size_t bytes() const { return array().bytes(); }
  const Buffer& memory() const { return array().memory(); }
  std::size_t bytes_of(Range range) const { return static_cast<std::size_t>(range.size()) * size_of(dtype()); }

 private:
  const UnitArray& array() const {
    SO_CHECK(array_, "weights in the caller's memory are no array");
    return *array_;
  }

  const ParameterLayout& layout_;
  const DType dtype_;
  const std::vector<WeightPlace> places_;
  std::optional<UnitArray> array_;  // none if there are places
};

}  // namespace so
