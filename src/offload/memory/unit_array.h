// Device memory over the flat range of parameters, by unit: most units have a place of their own, and some take turns
// in a slot, where what one of them has lasts until the next one comes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

class UnitArray {
 public:
  // The array has elements for all parameters, or for those that need memory for gradients
  // (ParameterLayout::gradient_ranges()).
  enum class Of : std::uint8_t { all, gradients };

  // `slots`: by unit, the number of its slot, or -1 for a place of its own; empty: all have their own. Adjacent units
  // with places of their own lie side by side, so that a view may span them. Booked as `name`.
  UnitArray(Device& device, const ParameterLayout& layout, DType dtype, std::span<const int> slots, std::string name,
            Of of = Of::all);

  // The address of an element of the flat range; the rest of its unit lies behind it, or of its gradient range. An
  // element that the array does not have is a Bug.
  std::byte* at(std::int64_t element) const;
  // A view of `count` joined parameters.
  Tensor view(int first, int count = 1) const;

  DType dtype() const { return dtype_; }
  std::size_t bytes() const { return memory_.bytes(); }
  const Buffer& memory() const { return memory_; }
  // The unit's slot, -1 if it has a place of its own.
  int slot(int unit) const { return slots_.empty() ? -1 : slots_[static_cast<std::size_t>(unit)]; }

 private:
  const ParameterLayout& layout_;
  DType dtype_;
  std::vector<int> slots_;
  // A part of a unit that the array has, and where it begins, in elements of the memory. In order of the flat range.
  struct Piece {
    Range range;
    std::int64_t start = 0;
  };
  std::vector<Piece> pieces_;
  Buffer memory_;
};

}  // namespace so
