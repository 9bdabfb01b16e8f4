#include "offload/memory/slice_array.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace so {

SliceArray::SliceArray(Device& device, const ParameterLayout& layout, DType dtype, std::span<const Bucket> buckets,
                       const std::vector<bool>& units, std::string name, Of of)
    : layout_(layout), dtype_(dtype), buckets_(buckets), units_(units) {
  SO_CHECK(static_cast<int>(units.size()) == layout.units(), "{} of {} units", units.size(), layout.units());
  if (std::find(units.begin(), units.end(), true) == units.end()) return;
  std::size_t bytes = 0;
  for (const Bucket& bucket : buckets) {
    starts_.push_back(bytes);
    const int unit = layout.unit_of(bucket.range().begin);
    if (!has(unit)) continue;
    SO_CHECK(bucket.range().end <= layout.unit_range(unit).end, "bucket {} has a part of unit {}, which has slices",
             bucket.index(), unit);
    if (of == Of::trained && bucket.frozen()) continue;
    bytes += static_cast<std::size_t>(bucket.own().size()) * size_of(dtype);
  }
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
