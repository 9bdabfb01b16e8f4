#include "offload/optimizer_state.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace so {

OptimizerState::OptimizerState(Device& device, Owner owner, std::span<const Bucket> buckets) {
  for (const Bucket& bucket : buckets) {
    const bool own = bucket.owner() == owner;
    offsets_.push_back(own ? elements_ : -1);
    if (own) elements_ += bucket.range().size();
  }
  const MemoryKind kind = owner == Owner::host ? MemoryKind::pageable : MemoryKind::device;
  constexpr std::array names = {"master weights", "first moments", "second moments"};
  for (std::size_t i = 0; i < arrays_.size(); ++i)
    arrays_[i] = device.allocate(kind, static_cast<std::size_t>(elements_) * sizeof(float), names[i]);
}

void OptimizerState::clear(ThreadPool& pool) {
  const std::int64_t grain = std::max<std::int64_t>(1 << 16, elements_ / (8 * pool.size()));
  pool.parallel_for(elements_, grain, [&](std::int64_t begin, std::int64_t end) {
    for (const StateArray which : state_arrays)
      std::memset(array(which) + begin, 0, static_cast<std::size_t>(end - begin) * sizeof(float));
  });
}

void OptimizerState::clear(Stream& stream) {
  for (const Buffer& buffer : arrays_) stream.zero(buffer.data(), buffer.bytes());
}

float* OptimizerState::at(StateArray which, const Bucket& bucket, std::int64_t element) const {
  const std::int64_t offset = offsets_[static_cast<std::size_t>(bucket.index())];
  SO_CHECK(offset >= 0 && element >= bucket.range().begin && element <= bucket.range().end,
           "state of element {} in bucket {}, which {} has", element, bucket.index(), name_of(bucket.owner()));
  return array(which) + offset + (element - bucket.range().begin);
}

AdamWState OptimizerState::at(const Bucket& bucket, std::int64_t element) const {
  return {at(StateArray::master, bucket, element), at(StateArray::first_moment, bucket, element),
          at(StateArray::second_moment, bucket, element)};
}

}  // namespace so
