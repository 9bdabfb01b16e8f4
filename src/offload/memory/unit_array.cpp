#include "offload/memory/unit_array.h"

#include <algorithm>

#include "base/error.h"

namespace so {

UnitArray::UnitArray(Device& device, const ParameterLayout& layout, DType dtype, std::span<const int> slots,
                     std::string name)
    : layout_(layout), dtype_(dtype), slots_(slots.begin(), slots.end()) {
  SO_CHECK(slots.empty() || static_cast<int>(slots.size()) == layout.units(), "slots of {} of {} units", slots.size(),
           layout.units());
  std::int64_t elements = 0;
  std::vector<std::int64_t> slot_elements;
  for (int unit = 0; unit < layout.units(); ++unit) {
    const std::int64_t size = layout.unit_range(unit).size();
    starts_.push_back(elements);
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
  for (int unit = 0; unit < layout.units(); ++unit)
    if (slot(unit) >= 0) starts_[static_cast<std::size_t>(unit)] = slot_starts[static_cast<std::size_t>(slot(unit))];
  memory_ = device.allocate(MemoryKind::device, static_cast<std::size_t>(elements) * size_of(dtype), std::move(name));
}

std::byte* UnitArray::at(std::int64_t element) const {
  const int unit = layout_.unit_of(element);
  const std::int64_t index = starts_[static_cast<std::size_t>(unit)] + element - layout_.unit_range(unit).begin;
  return static_cast<std::byte*>(memory_.data()) + static_cast<std::size_t>(index) * size_of(dtype_);
}

Tensor UnitArray::view(int first, int count) const {
  return layout_.view_at(at(layout_.range(first).begin), dtype_, first, count);
}

}  // namespace so
