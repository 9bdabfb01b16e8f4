#include "offload/memory/optimizer_state.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "offload/memory/touch.h"

namespace so {

OptimizerState::OptimizerState(Device& device, const Host& host, const ParameterLayout& layout,
                               std::span<const Bucket> buckets, DType moments)
    : OptimizerState(device, Owner::host, host.pinned ? MemoryKind::pinned : MemoryKind::pageable, layout, buckets,
                     moments, host.spare_places, zeros_by(host.pool)) {}

OptimizerState::OptimizerState(Device& device, const ParameterLayout& layout, std::span<const Bucket> buckets,
                               DType moments)
    : OptimizerState(device, Owner::device, MemoryKind::device, layout, buckets, moments, 0, {}) {}

OptimizerState::OptimizerState(Device& device, Owner owner, MemoryKind kind, const ParameterLayout& layout,
                               std::span<const Bucket> buckets, DType moments, std::int64_t spare_places,
                               const Device::Touch& touch)
    : layout_(layout), moments_(moments) {
  Extent all;
  for (const Bucket& bucket : buckets) {
    if (bucket.owner() != owner) continue;
    const Extent own = extent_of(bucket);
    place_ = {std::max(place_.elements, own.elements), std::max(place_.blocks, own.blocks)};
  }
  for (const Bucket& bucket : buckets) {
    const bool own = bucket.owner() == owner;
    places_.push_back(own ? static_cast<int>(starts_.size()) : -1);
    if (!own) continue;
    starts_.push_back(all);
    // A place that any bucket may adopt must hold the largest.
    const Extent taken = spare_places > 0 ? place_ : extent_of(bucket);
    all = {all.elements + taken.elements, all.blocks + taken.blocks};
  }
  spare_places = std::min(spare_places, static_cast<std::int64_t>(starts_.size()));
  spare_.resize(static_cast<std::size_t>(spare_places));
  std::iota(spare_.begin(), spare_.end(), static_cast<int>(starts_.size()));

  constexpr std::array<const char*, array_count> names = {"master weights", "first moments", "second moments",
                                                          "scales of first moments", "scales of second moments"};
  const Extent spare{spare_places * place_.elements, spare_places * place_.blocks};
  for (std::size_t i = 0; i < array_count; ++i) {
    state_[i] = device.allocate(kind, bytes_of(i, all), names[i], touch);
    spare_state_[i] = device.allocate(kind, bytes_of(i, spare), "spare optimizer state", touch);
  }
}

std::size_t OptimizerState::bytes_of(std::size_t array, const Extent& extent) const {
  if (array < state_arrays.size())
    return static_cast<std::size_t>(extent.elements) * size_of(dtype(state_arrays[array]));
  return moments_ == DType::u8 ? static_cast<std::size_t>(extent.blocks) * sizeof(float) : 0;
}

OptimizerState::Extent OptimizerState::extent_of(const Bucket& bucket) const {
  return {bucket.own().size(), layout_.blocks(bucket.own())};
}

OptimizerState::Extent OptimizerState::before(const Bucket& bucket, std::int64_t element) const {
  SO_CHECK(place_of(bucket) >= 0 && element >= bucket.own().begin && element <= bucket.own().end,
           "state of element {} in bucket {}, which {} has", element, bucket.index(), name_of(bucket.owner()));
  return {element - bucket.own().begin, layout_.blocks({bucket.own().begin, element})};
}

void OptimizerState::clear(Stream& stream) {
  for (const Arrays* arrays : {&state_, &spare_state_})
    for (const Buffer& buffer : *arrays) stream.zero(buffer.data(), buffer.bytes());
}

std::byte* OptimizerState::at(std::size_t array, int place, const Extent& before) const {
  const auto p = static_cast<std::size_t>(place);
  const bool own = p < starts_.size();
  const auto spare = own ? 0 : static_cast<std::int64_t>(p - starts_.size());
  const Extent start = own ? starts_[p] : Extent{spare * place_.elements, spare * place_.blocks};
  return static_cast<std::byte*>((own ? state_ : spare_state_)[array].data()) +
         bytes_of(array, {start.elements + before.elements, start.blocks + before.blocks});
}

StatePart OptimizerState::part(StateArray array, const Bucket& bucket, Range range) const {
  const Extent from = before(bucket, range.begin);
  const Tensor values(at(index_of(array), place_of(bucket), from), dtype(array), {range.size()});
  if (dtype(array) != DType::u8) return StatePart(values);
  return {array, values, reinterpret_cast<float*>(at(scales_of(array), place_of(bucket), from)), layout_, range};
}

std::vector<std::span<std::byte>> OptimizerState::arrays_in(int place, const Bucket& bucket) const {
  std::vector<std::span<std::byte>> arrays;
  for (std::size_t i = 0; i < array_count; ++i)
    if (const std::size_t bytes = bytes_of(i, extent_of(bucket)); bytes > 0)
      arrays.emplace_back(at(i, place, {}), bytes);
  return arrays;
}

std::vector<std::span<std::byte>> OptimizerState::arrays(const Bucket& bucket) const {
  return arrays_in(place_of(bucket), bucket);
}
std::vector<std::span<std::byte>> OptimizerState::arrays_beside(int place, const Bucket& bucket) const {
  return arrays_in(place, bucket);
}

std::vector<std::size_t> OptimizerState::array_bytes() const {
  std::vector<std::size_t> bytes;
  for (std::size_t i = 0; i < array_count; ++i)
    if (const std::size_t size = bytes_of(i, place_); size > 0) bytes.push_back(size);
  return bytes;
}

AdamWState OptimizerState::state_at(std::span<void* const> arrays) const {
  const auto moments = [&](StateArray array) {
    return Moments::of(moments_, arrays[index_of(array)],
                       moments_ == DType::u8 ? static_cast<float*>(arrays[scales_of(array)]) : nullptr);
  };
  return {static_cast<float*>(arrays[index_of(StateArray::master)]), moments(StateArray::first_moment),
          moments(StateArray::second_moment)};
}

float* OptimizerState::master(const Bucket& bucket, std::int64_t element) const { return at(bucket, element).master; }

AdamWState OptimizerState::at(const Bucket& bucket, std::int64_t element) const {
  return beside(place_of(bucket), bucket, element);
}

AdamWState OptimizerState::beside(int place, const Bucket& bucket, std::int64_t element) const {
  const Extent from = before(bucket, element);
  const auto moments = [&](StateArray array) {
    float* const scales = moments_ == DType::u8 ? reinterpret_cast<float*>(at(scales_of(array), place, from)) : nullptr;
    return Moments::of(moments_, at(index_of(array), place, from), scales, layout_.block_at(element).offset);
  };
  return {reinterpret_cast<float*>(at(index_of(StateArray::master), place, from)), moments(StateArray::first_moment),
          moments(StateArray::second_moment)};
}

void OptimizerState::clear(int place, const Bucket& bucket, Range range) {
  for (const StateArray array : state_arrays)
    std::memset(at(index_of(array), place, before(bucket, range.begin)), 0,
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
