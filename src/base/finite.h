// Searching arrays of floating-point numbers for Inf and NaN, as fast as memory is read.
#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.h"

namespace so {

// The index of the first of `count` elements of `dtype` (f32, bf16 or f16) at `data` that is Inf or NaN; `count` if
// there is none. `data` need not be aligned.
std::size_t find_non_finite(DType dtype, const void* data, std::size_t count);

inline std::size_t find_non_finite(std::span<const float> values) {
  return find_non_finite(DType::f32, values.data(), values.size());
}

}  // namespace so
