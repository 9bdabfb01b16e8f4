#include "offload/device_weights.h"

namespace so {

DeviceWeights::DeviceWeights(Device& device, const ParameterLayout& layout, DType dtype)
    : layout_(layout),
      dtype_(dtype),
      buffer_(device.allocate(MemoryKind::device, static_cast<std::size_t>(layout.elements()) * size_of(dtype),
                              "weights")) {}

}  // namespace so
