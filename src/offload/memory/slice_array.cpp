#include "offload/memory/slice_array.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace so {

SliceArray::SliceArray(Device& device, const ParameterLayout& layout, DType dtype, std::span<const Bucket> buckets,
                       const std::vector<bool>& units, std::string name, Of of, std::span<const int> slots)
    : layout_(layout), dtype_(dtype), buckets_(buckets), units_(units) {
  SO_CHECK(static_cast<int>(units.size()) == layout.units(), "{} of {} units", units.size(), layout.units());
  if (std::find(units.begin(), units.end(), true) == units.end()) return;
  const auto slot = [&](int unit) { return slots.empty() ? -1 : slots[static_cast<std::size_t>(unit)]; };
  std::vector<std::size_t> unit_bytes(units.size());
  for (const Bucket& bucket : buckets) {
    const int unit = layout.unit_of(bucket.range().begin);
    starts_.push_back(unit_bytes[static_cast<std::size_t>(unit)]);
    if (!has(unit)) continue;
    SO_CHECK(bucket.range().end <= layout.unit_range(unit).end, "bucket {} has a part of unit {}, which has slices",
             bucket.index(), unit);
    if (of == Of::trained && bucket.frozen()) continue;
    unit_bytes[static_cast<std::size_t>(unit)] += static_cast<std::size_t>(bucket.own().size()) * size_of(dtype);
  }
  // Places that are taken in turn come first, each as large as the largest that takes it.
  std::vector<std::size_t> places;
  for (int unit = 0; unit < layout.units(); ++unit) {
    if (slot(unit) < 0) continue;
    places.resize(std::max(places.size(), static_cast<std::size_t>(slot(unit)) + 1));
    std::size_t& place = places[static_cast<std::size_t>(slot(unit))];
    place = std::max(place, unit_bytes[static_cast<std::size_t>(unit)]);
  }
  std::vector<std::size_t> place_starts(places.size()), unit_starts(units.size());
  std::exclusive_scan(places.begin(), places.end(), place_starts.begin(), std::size_t{0});
  std::size_t bytes = std::accumulate(places.begin(), places.end(), std::size_t{0});
  for (int unit = 0; unit < layout.units(); ++unit) {
    const auto u = static_cast<std::size_t>(unit);
    unit_starts[u] = slot(unit) < 0 ? bytes : place_starts[static_cast<std::size_t>(slot(unit))];
    if (slot(unit) < 0) bytes += unit_bytes[u];
  }
  for (std::size_t i = 0; i < buckets.size(); ++i)
    starts_[i] += unit_starts[static_cast<std::size_t>(layout.unit_of(buckets[i].range().begin))];
  // A rank that has no slice has an address, too.
  memory_ = device.allocate(MemoryKind::device, std::max<std::size_t>(bytes, 1), std::move(name));
}

const Bucket& SliceArray::bucket_of(std::int64_t element) const {
  const auto found = std::upper_bound(buckets_.begin(), buckets_.end(), element,
                                      [](std::int64_t e, const Bucket& bucket) { return e < bucket.range().end; });
  SO_CHECK(found != buckets_.end(), "element {}, behind the last bucket", element);
  return *found;
}

std::byte* SliceArray::at(std::int64_t element) const {
  if (empty()) return nullptr;
  const Bucket& bucket = bucket_of(element);
  if (!has(layout_.unit_of(bucket.range().begin))) return nullptr;
  SO_CHECK(element >= bucket.own().begin && element <= bucket.own().end, "element {} of bucket {} is another rank's",
           element, bucket.index());
  return static_cast<std::byte*>(memory_.data()) + starts_[static_cast<std::size_t>(bucket.index())] +
         static_cast<std::size_t>(element - bucket.own().begin) * size_of(dtype_);
}

}  // namespace so
