// Weights that all lie on the device, in compute dtype, as one flat array.
#pragma once

#include "offload/parameter_layout.h"
#include "offload/parameter_source.h"
#include "offload/weight_piece.h"

namespace so {

class DeviceWeights final : public WeightSource {
 public:
  // Booked as "weights". Contents are unspecified until loaded.
  DeviceWeights(Device& device, const ParameterLayout& layout, DType dtype);

  void require_weights(int, Stream&) override {}
  void release_weights(int, Stream&) override {}
  Tensor weight(int first, int count = 1) const override { return layout_.view(buffer_.data(), dtype_, first, count); }

  // The form in which place() wants weights.
  WeightForms forms() const { return {dtype_ == DType::f32, dtype_ == DType::bf16}; }
  // Enqueues the copy of a piece to its place.
  void place(Stream& stream, const WeightPiece& piece);

  DType dtype() const { return dtype_; }
  void* data() const { return buffer_.data(); }
  std::byte* at(std::int64_t element) const {
    return static_cast<std::byte*>(buffer_.data()) + static_cast<std::size_t>(element) * size_of(dtype_);
  }
  std::size_t bytes() const { return buffer_.bytes(); }

 private:
  const ParameterLayout& layout_;
  DType dtype_;
  Buffer buffer_;
};

}  // namespace so
