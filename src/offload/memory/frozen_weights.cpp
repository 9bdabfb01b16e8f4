#include "offload/memory/frozen_weights.h"

#include <algorithm>

#include "base/error.h"

namespace so {

FrozenWeights::FrozenWeights(Device& device, const ParameterLayout& layout, std::span<const Bucket> buckets,
                             const UnitWeights& weights)
    : weights_(weights) {
  if (!layout.has_frozen()) return;
  constexpr std::int64_t most_elements = std::int64_t{8} << 20;  // 32 MiB, where copies run at full speed
  std::int64_t largest = 1;
  for (const Bucket& bucket : buckets)
    if (bucket.frozen()) largest = std::max(largest, bucket.own().size());
  transfer_ = std::make_unique<StateTransfer>(device, std::min(largest, most_elements));
  loaded_ = device.create_event();
}

FrozenWeights::Place FrozenWeights::place_of(Range part) const {
  WeightResidency& residency = weights_.at(part.begin);
  SO_CHECK(transfer_ && !weights_.follows_masters(part.begin), "frozen weights at {} without a place", part.begin);
  const DType dtype = weights_.on_device().dtype();
  if (std::byte* const host = residency.host_memory(part.begin)) return {Tensor(host, dtype, {part.size()}), true};
  return {Tensor(weights_.own_at(part.begin), dtype, {part.size()}), false};
}

void FrozenWeights::read(Range part, const ReadPiece& body) {
  const Place place = place_of(part);
  if (place.on_host) return read_host_state(StatePart(place.weights), body);
  transfer_->read(StatePart(place.weights), *loaded_, body);
}

void FrozenWeights::write(Range part, const WritePiece& fill) {
  const Place place = place_of(part);
  const Range all{0, part.size()};
  if (place.on_host) return write_host_state(StatePart(place.weights), all, fill);
  transfer_->write(StatePart(place.weights), all, *loaded_, fill);
}

}  // namespace so
