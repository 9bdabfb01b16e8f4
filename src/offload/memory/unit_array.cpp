#include "offload/memory/unit_array.h"

#include <algorithm>

#include "base/error.h"
#include "offload/schedule/unit_places.h"

namespace so {

UnitArray::UnitArray(Device& device, const ParameterLayout& layout, DType dtype, std::span<const int> slots,
                     std::string name, Of of)
    : layout_(layout), dtype_(dtype), slots_(slots.begin(), slots.end()) {
  const auto ranges_of = [&](int unit) {
    return of == Of::gradients ? layout.gradient_ranges(unit) : std::vector{layout.unit_range(unit)};
  };
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(layout.units()));
  for (int unit = 0; unit < layout.units(); ++unit)
    for (const Range& range : ranges_of(unit)) sizes[static_cast<std::size_t>(unit)] += range.size();
  const UnitPlaces places = lay_out(sizes, slots);
  for (int unit = 0; unit < layout.units(); ++unit) {
    std::int64_t start = places.starts[static_cast<std::size_t>(unit)];
    for (const Range& range : ranges_of(unit)) {
      pieces_.push_back({range, start});
      start += range.size();
    }
  }
  memory_ =
      device.allocate(MemoryKind::device, static_cast<std::size_t>(places.size) * size_of(dtype), std::move(name));
}

std::byte* UnitArray::at(std::int64_t element) const {
  const auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), element,
                                      [](std::int64_t e, const Piece& p) { return e < p.range.end; });
  SO_CHECK(piece != pieces_.end() && element >= piece->range.begin, "nothing is kept for element {}", element);
  const std::int64_t index = piece->start + element - piece->range.begin;
  return static_cast<std::byte*>(memory_.data()) + static_cast<std::size_t>(index) * size_of(dtype_);
}

Tensor UnitArray::view(int first, int count) const {
  return layout_.view_at(at(layout_.range(first).begin), dtype_, first, count);
}

}  // namespace so
