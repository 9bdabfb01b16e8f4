// The memory that each kind of backend needs. It is plain arithmetic, so that a dry run on any machine plans what the
// real backend will use; the backend checks itself against it.
#pragma once

#include "ops/ops.h"

namespace so {

// cuBLASLt multiplies bf16 matrices at the full rate of Hopper's matrix units if their rows begin at multiples of this
// number of elements and their length is a multiple of it. An odd length runs at an eighth of the rate, another at a
// third.
inline constexpr std::int64_t gemm_multiple = 8;

const OpsMemory& cpu_ops_memory();
const OpsMemory& cuda_ops_memory();

}  // namespace so
