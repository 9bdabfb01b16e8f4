// Between grad_norm.cpp and grad_norm_kernels.cpp. Not for other rooms.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "optim/grad_norm.h"

namespace so::grad_norm {

inline constexpr std::size_t kLanes = 32;  // of the summation order in grad_norm.h

// The sum of squares of one chunk: 1 to kGradNormChunk elements.
struct KernelTable {
  std::string name;
  double (*chunk_f32)(const float* x, std::size_t count) = nullptr;
  double (*chunk_bf16)(const bf16* x, std::size_t count) = nullptr;
};

// The instruction sets this machine can run, best first. Constant after the first call.
const std::vector<KernelTable>& kernel_tables();

}  // namespace so::grad_norm
