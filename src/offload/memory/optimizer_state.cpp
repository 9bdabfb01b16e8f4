#include "offload/memory/optimizer_state.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "offload/memory/touch.h"

namespace so {

OptimizerState::OptimizerState(Device& device, const Host& host, std::span<const Bucket> buckets, DType moments)
    : OptimizerState(device, Owner::host, host.pinned ? MemoryKind::pinned : MemoryKind::pageable, buckets, moments,
                     host.spare_places, zeros_by(host.pool)) {}

OptimizerState::OptimizerState(Device& device, std::span<const Bucket> buckets, DType moments)
    : OptimizerState(device, Owner::device, MemoryKind::device, buckets, moments, 0, {}) {}

OptimizerState::OptimizerState(Device& device, Owner owner, MemoryKind kind, std::span<const Bucket> buckets,
                               DType moments, std::int64_t spare_places, const Device::Touch& touch)
    : moments_(moments) {
  std::int64_t elements = 0;
  for (const Bucket& bucket : buckets)
    if (bucket.owner() == owner) place_elements_ = std::max(place_elements_, bucket.own().size());
  for (const Bucket& bucket : buckets) {
    const bool own = bucket.owner() == owner;
    places_.push_back(own ? static_cast<int>(starts_.size()) : -1);
    if (!own) continue;
    starts_.push_back(elements);
    // A place that any bucket may adopt must hold the largest.
    elements += spare_places > 0 ? place_elements_ : bucket.own().size();
  }
  spare_places = std::min(spare_places, static_cast<std::int64_t>(starts_.size()));
  spare_.resize(static_cast<std::size_t>(spare_places));
  std::iota(spare_.begin(), spare_.end(), static_cast<int>(starts_.size()));

  constexpr std::array names = {"master weights", "first moments", "second moments"};
  for (std::size_t i = 0; i < state_.size(); ++i) {
    const std::size_t size = size_of(dtype(state_arrays[i]));
    state_[i] = device.allocate(kind, static_cast<std::size_t>(elements) * size, names[i], touch);
    spare_state_[i] = device.allocate(kind, static_cast<std::size_t>(spare_places * place_elements_) * size,
                                      "spare optimizer state", touch);
  }
}

void OptimizerState::clear(Stream& stream) {
  for (const Arrays* arrays : {&state_, &spare_state_})
    for (const Buffer& buffer : *arrays) stream.zero(buffer.data(), buffer.bytes());
}

std::int64_t OptimizerState::offset_in(const Bucket& bucket, std::int64_t element) const {
  SO_CHECK(places_[static_cast<std::size_t>(bucket.index())] >= 0 && element >= bucket.own().begin &&
               element <= bucket.own().end,
           "state of element {} in bucket {}, which {} has", element, bucket.index(), name_of(bucket.owner()));
  return element - bucket.own().begin;
}

std::byte* OptimizerState::at(StateArray array, int place, std::int64_t offset) const {
  const auto which = static_cast<std::size_t>(array), p = static_cast<std::size_t>(place);
  const bool own = p < starts_.size();
  const std::int64_t start = own ? starts_[p] : static_cast<std::int64_t>(p - starts_.size()) * place_elements_;
  auto* data = static_cast<std::byte*>((own ? state_ : spare_state_)[which].data());
  return data + static_cast<std::size_t>(start + offset) * size_of(dtype(array));
}

Tensor OptimizerState::part(StateArray array, const Bucket& bucket, Range range) const {
  return {at(array, places_[static_cast<std::size_t>(bucket.index())], offset_in(bucket, range.begin)),
          dtype(array),
          {range.size()}};
}

Tensor OptimizerState::part_beside(StateArray array, int place, const Bucket& bucket) const {
  return {at(array, place, 0), dtype(array), {bucket.own().size()}};
}

float* OptimizerState::master(const Bucket& bucket, std::int64_t element) const { return at(bucket, element).master; }

AdamWState OptimizerState::at(const Bucket& bucket, std::int64_t element) const {
  return beside(places_[static_cast<std::size_t>(bucket.index())], bucket, element);
}

AdamWState OptimizerState::beside(int place, const Bucket& bucket, std::int64_t element) const {
  const std::int64_t offset = offset_in(bucket, element);
  const auto moments = [&](StateArray array) {
    void* data = at(array, place, offset);
    return moments_ == DType::bf16 ? Moments(static_cast<bf16*>(data)) : Moments(static_cast<float*>(data));
  };
  return {reinterpret_cast<float*>(at(StateArray::master, place, offset)), moments(StateArray::first_moment),
          moments(StateArray::second_moment)};
}

void OptimizerState::clear(int place, const Bucket& bucket, Range range) {
  for (const StateArray array : state_arrays)
    std::memset(at(array, place, offset_in(bucket, range.begin)), 0,
                static_cast<std::size_t>(range.size()) * size_of(dtype(array)));
}

int OptimizerState::take_spare() {
  SO_CHECK(!spare_.empty(), "no spare place for new state");
  const int place = spare_.back();
  spare_.pop_back();
  return place;
}

void OptimizerState::adopt(int place, const Bucket& bucket) {
  int& own = places_[static_cast<std::size_t>(bucket.index())];
  spare_.push_back(own);
  own = place;
}

}  // namespace so
