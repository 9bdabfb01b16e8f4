#include "offload/memory/caller_weights.h"

#include <cstring>

#include "base/error.h"

namespace so {

CallerWeights::CallerWeights(Device& device, const ParameterLayout& layout, const DeviceWeights& weights,
                             const std::vector<bool>& kept)
    : layout_(layout), weights_(weights), ops_(make_engine_ops(device)), places_(kept.size(), Place::current) {
  std::size_t bytes = 0;
  for (int unit = 0; unit < layout.units(); ++unit) {
    starts_.push_back(bytes);
    arrived_.push_back(kept[static_cast<std::size_t>(unit)] ? device.create_event() : nullptr);
    if (arrived_.back()) bytes += static_cast<std::size_t>(layout.unit_range(unit).size()) * size_of(weights.dtype());
  }
  memory_ = device.allocate(MemoryKind::pinned, bytes, "new weights");
  if (memory_) copies_ = device.create_stream("new weights");
}

void CallerWeights::begin(Range part) {
  const int unit = layout_.unit_of(part.begin);
  if (here(unit)) return;
  const auto [first, last] = layout_.unit_parameters(unit);
  for (int p = first; p < last; ++p) {
    const Range range = layout_.range(p), changed = common(range, part);
    if (changed.size() <= 0) continue;
    const Tensor whole = weights_.weight(p);
    const auto offset = static_cast<std::size_t>(changed.begin - range.begin) * size_of(whole.dtype());
    const Tensor to(static_cast<std::byte*>(whole.data()) + offset, whole.dtype(), {changed.size()}),
        from(host_memory(changed.begin), weights_.dtype(), {changed.size()});
    if (to.dtype() == from.dtype())
      copies_->copy(to.data(), from.data(), from.bytes());
    else  // a GPU's kernel reads pinned memory over the link
      ops_->cast(*copies_, to, from);
  }
}

void CallerWeights::require(int unit, Stream& stream) {
  if (here(unit)) return;
  Event& arrived = *arrived_[static_cast<std::size_t>(unit)];
  copies_->record(arrived);
  stream.wait(arrived);
  at(unit) = Place::current;
  ++copied_;
}

void CallerWeights::place(Stream&, Range part, const void* weights) {
  SO_CHECK(weights, "the caller's weights at {} came in another form", part.begin);
  std::memcpy(host_memory(part.begin), weights, weights_.bytes_of(part));
  at(layout_.unit_of(part.begin)) = Place::older;
}

void CallerWeights::drop_all() {
  if (copies_) copies_->synchronize();
  places_.assign(places_.size(), Place::older);
}

std::byte* CallerWeights::host_memory(std::int64_t element) const {
  const int unit = layout_.unit_of(element);
  const std::int64_t offset = element - layout_.unit_range(unit).begin;
  return static_cast<std::byte*>(memory_.data()) + starts_[static_cast<std::size_t>(unit)] +
         static_cast<std::size_t>(offset) * size_of(weights_.dtype());
}

}  // namespace so
