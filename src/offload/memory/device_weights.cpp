#include "offload/memory/device_weights.h"

namespace so {

DeviceWeights::DeviceWeights(Device& device, const ParameterLayout& layout, DType dtype, std::span<const int> slots,
                             std::span<const WeightPlace> places)
    : layout_(layout), dtype_(dtype), places_(places.begin(), places.end()) {
  if (places.empty()) array_.emplace(device, layout, dtype, slots, "weights");
}

Tensor DeviceWeights::weight(int first, int count) const {
  if (array_) return array_->view(first, count);
  SO_CHECK(count == 1, "{} weights in the caller's memory as one", count);
  const WeightPlace& place = places_[static_cast<std::size_t>(first)];
  return layout_.view_at(place.data, place.dtype, first);
}

void DeviceWeights::place(Stream& stream, const WeightPiece& piece) {
  if (dtype() == DType::f32)
    stream.copy(at(piece.begin), piece.wide.data(), piece.wide.size_bytes());
  else
    stream.copy(at(piece.begin), piece.narrow.data(), piece.narrow.size_bytes());
}

}  // namespace so
