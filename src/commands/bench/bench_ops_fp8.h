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
// The ops that leave an operand in FP8: the norm of `hidden` columns, and an activation of this width.
std::vector<Case> fp8_operand_cases(std::int64_t tokens, std::int64_t hidden, std::int64_t width, MlpActivation gate,
                                    DType activations);

}  // namespace so
