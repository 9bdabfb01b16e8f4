// The products of `bench ops --fp8`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "commands/bench/bench_ops_cases.h"

namespace so {

// The three products in FP8 of `tokens` rows with a weight [out, in], and the rounding of their operands. Sizes are
// multiples of 128.
std::vector<Case> fp8_cases(const std::string& which, std::int64_t tokens, std::int64_t in, std::int64_t out,
                            DType activations);

}  // namespace so
