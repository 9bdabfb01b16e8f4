// Whose a row is, in kernels. Included by .cu files only.
#pragma once

#include <cstdint>

namespace so::kernel {

// The expert whose row it is: the last one that begins at or before it. This takes a few reads that hit the L1 cache;
// to look it up by pairs would take two that do not.
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
