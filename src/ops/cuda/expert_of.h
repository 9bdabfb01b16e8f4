// Whose a row is, in kernels. Included by .cu files only.
#pragma once

#include <cstdint>

namespace so::kernel {

// The last of the experts that begin at or before the row: the one that has it. A few reads that hit the L1 cache,
// where the way by pairs would be two that do not.
__device__ inline int expert_of(const std::int32_t* offsets, int experts, std::int64_t row) {
  int low = 0, high = experts;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (offsets[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  return low;
}

}  // namespace so::kernel
