// Arrays of bf16 and fp32 made of each other, with the widest instructions that the processor has.
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace so {

// `count` elements, which need not be aligned; the arrays do not overlap. Rounding is bf16's own, NaN included.
void widen_bf16(const bf16* from, float* to, std::size_t count);
void round_to_bf16(const float* from, bf16* to, std::size_t count);

}  // namespace so
