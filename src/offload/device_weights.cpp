#include "offload/device_weights.h"

namespace so {

DeviceWeights::DeviceWeights(Device& device, const ParameterLayout& layout, DType dtype)
    : layout_(layout),
      dtype_(dtype),
      buffer_(device.allocate(MemoryKind::device, static_cast<std::size_t>(layout.elements()) * size_of(dtype),
                              "weights")) {}

void DeviceWeights::place(Stream& stream, const WeightPiece& piece) {
  if (dtype_ == DType::f32)
    stream.copy(at(piece.begin), piece.wide.data(), piece.wide.size_bytes());
  else
    stream.copy(at(piece.begin), piece.narrow.data(), piece.narrow.size_bytes());
}

}  // namespace so
