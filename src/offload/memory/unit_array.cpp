#include "offload/memory/unit_array.h"

#include <algorithm>

#include "base/error.h"

namespace so {

UnitArray::UnitArray(Device& device, const ParameterLayout& layout, DType dtype, std::span<const int> slots,
                     std::string name, Of of)
    : layout_(layout), dtype_(dtype), slots_(slots.begin(), slots.end()) {
  SO_CHECK(slots.empty() || static_cast<int>(slots.size()) == layout.units(), "slots of {} of {} units", slots.size(),
           layout.units());
  const auto ranges_of = [&](int unit) {
    return of == Of::gradients ? layout.gradient_ranges(unit) : std::vector{layout.unit_range(unit)};
  };
  std::int64_t elements = 0;
  std::vector<std::int64_t> slot_elements;
  for (int unit = 0; unit < layout.units(); ++unit) {
    std::int64_t size = 0;
    for (const Range& range : ranges_of(unit)) size += range.size();
    if (slot(unit) < 0) {
      elements += size;
      continue;
    }
    const auto s = static_cast<std::size_t>(slot(unit));
    if (s >= slot_elements.size()) slot_elements.resize(s + 1, 0);
    slot_elements[s] = std::max(slot_elements[s], size);
  }
  std::vector<std::int64_t> slot_starts;
  for (const std::int64_t size : slot_elements) {
    slot_starts.push_back(elements);
    elements += size;
  }
  std::int64_t next = 0;  // of the units with places of their own
  for (int unit = 0; unit < layout.units(); ++unit) {
    std::int64_t in_slot = slot(unit) < 0 ? 0 : slot_starts[static_cast<std::size_t>(slot(unit))];
    std::int64_t& start = slot(unit) < 0 ? next : in_slot;
    for (const Range& range : ranges_of(unit)) {
      pieces_.push_back({range, start});
      start += range.size();
    }
  }
  memory_ = device.allocate(MemoryKind::device, static_cast<std::size_t>(elements) * size_of(dtype), std::move(name));
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
