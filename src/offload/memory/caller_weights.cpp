#include "offload/memory/caller_weights.h"

#include <cstring>

#include "base/error.h"

namespace so {

CallerWeights::CallerWeights(Device& device, const ParameterLayout& layout, const DeviceWeights& weights,
                             const std::vector<bool>& kept)
    : layout_(layout), weights_(weights), ops_(make_engine_ops(device)), here_(kept.size(), true) {
  std::size_t bytes = 0;
  for (int unit = 0; unit < layout.units(); ++unit) {
    starts_.push_back(bytes);
    if (kept[static_cast<std::size_t>(unit)])
      bytes += static_cast<std::size_t>(layout.unit_range(unit).size()) * size_of(weights.dtype());
  }
  memory_ = device.allocate(MemoryKind::pinned, bytes, "new weights");
}

void CallerWeights::require(int unit, Stream& stream) {
  if (here(unit)) return;
  const auto [first, last] = layout_.unit_parameters(unit);
  for (int p = first; p < last; ++p) {
    const Tensor to = weights_.weight(p),
                 from(host_memory(layout_.range(p).begin), weights_.dtype(), {layout_.range(p).size()});
    if (to.size() == 0) continue;
    if (to.dtype() == from.dtype())
      stream.copy(to.data(), from.data(), from.bytes());
    else  // a GPU's kernel reads pinned memory over the link
      ops_->cast(stream, Tensor(to.data(), to.dtype(), {to.size()}), from);
  }
  here_[static_cast<std::size_t>(unit)] = true;
  ++copies_;
}

void CallerWeights::place(Stream&, Range part, const void* weights) {
  SO_CHECK(weights, "the caller's weights at {} came in another form", part.begin);
  std::memcpy(host_memory(part.begin), weights, weights_.bytes_of(part));
  drop(layout_.unit_of(part.begin));
}

std::byte* CallerWeights::host_memory(std::int64_t element) const {
  const int unit = layout_.unit_of(element);
  const std::int64_t offset = element - layout_.unit_range(unit).begin;
  return static_cast<std::byte*>(memory_.data()) + starts_[static_cast<std::size_t>(unit)] +
         static_cast<std::size_t>(offset) * size_of(weights_.dtype());
}

}  // namespace so
