#include "offload/memory/device_weights.h"

namespace so {

DeviceWeights::DeviceWeights(Device& device, const ParameterLayout& layout, DType dtype, std::span<const int> slots)
    : array_(device, layout, dtype, slots, "weights") {}

void DeviceWeights::place(Stream& stream, const WeightPiece& piece) {
  if (dtype() == DType::f32)
    stream.copy(at(piece.begin), piece.wide.data(), piece.wide.size_bytes());
  else
    stream.copy(at(piece.begin), piece.narrow.data(), piece.narrow.size_bytes());
}

}  // namespace so
