#include "offload/memory/caller_weights.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace so {
namespace {

constexpr std::size_t arriving_bytes = std::size_t{16} << 20;

}  // namespace

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
  if (!memory_) return;
  copies_ = device.create_stream("new weights");
  mapped_ = static_cast<std::byte*>(device.mapped(memory_));
  if (mapped_ == nullptr) arriving_ = device.allocate(MemoryKind::device, arriving_bytes, "new weights");
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
    else
      cast(to, from);
  }
}

// A GPU's kernel reads mapped memory over the link; what is not mapped comes to the device in pieces.
void CallerWeights::cast(const Tensor& to, const Tensor& from) {
  auto* const here = static_cast<std::byte*>(from.data());
  if (mapped_ != nullptr) {
    const auto at = static_cast<std::size_t>(here - static_cast<std::byte*>(memory_.data()));
    return ops_->cast(*copies_, to, Tensor(mapped_ + at, from.dtype(), {from.size()}));
  }
  const auto piece = static_cast<std::int64_t>(arriving_bytes / size_of(from.dtype()));
  for (std::int64_t begin = 0; begin < from.size(); begin += piece) {
    const std::int64_t n = std::min(piece, from.size() - begin);
    const Tensor there(arriving_.data(), from.dtype(), {n});
    copies_->copy(there.data(), here + static_cast<std::size_t>(begin) * size_of(from.dtype()), there.bytes());
    auto* const out = static_cast<std::byte*>(to.data()) + static_cast<std::size_t>(begin) * size_of(to.dtype());
    ops_->cast(*copies_, Tensor(out, to.dtype(), {n}), there);
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
