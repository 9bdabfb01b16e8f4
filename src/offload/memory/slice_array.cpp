#include "offload/memory/slice_array.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "offload/schedule/unit_places.h"

namespace so {

SliceArray::SliceArray(Device& device, const ParameterLayout& layout, DType dtype, std::span<const Bucket> buckets,
                       const std::vector<bool>& units, std::string name, Of of, std::span<const int> slots)
    : layout_(layout), dtype_(dtype), buckets_(buckets), units_(units) {
  SO_CHECK(static_cast<int>(units.size()) == layout.units(), "{} of {} units", units.size(), layout.units());
  if (std::find(units.begin(), units.end(), true) == units.end()) return;
  std::vector<std::int64_t> sizes(units.size());  // of each unit's slices
  for (const Bucket& bucket : buckets) {
    const int unit = layout.unit_of(bucket.range().begin);
    starts_.push_back(sizes[static_cast<std::size_t>(unit)]);
    if (!has(unit)) continue;
    SO_CHECK(bucket.range().end <= layout.unit_range(unit).end, "bucket {} has a part of unit {}, which has slices",
             bucket.index(), unit);
    if (of == Of::trained && bucket.frozen()) continue;
    sizes[static_cast<std::size_t>(unit)] += bucket.own().size();
  }
  const UnitPlaces places = lay_out(sizes, slots);
  for (std::size_t i = 0; i < buckets.size(); ++i)
    starts_[i] += places.starts[static_cast<std::size_t>(layout.unit_of(buckets[i].range().begin))];
  // A rank that has no slice has an address, too.
  const std::size_t bytes = static_cast<std::size_t>(places.size) * size_of(dtype);
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
  const std::int64_t index = starts_[static_cast<std::size_t>(bucket.index())] + element - bucket.own().begin;
  return static_cast<std::byte*>(memory_.data()) + static_cast<std::size_t>(index) * size_of(dtype_);
}

}  // namespace so
