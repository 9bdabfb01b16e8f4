// The implementations of EngineOps share these: the order of the sum, and the checks of arguments.
#pragma once

#include <cstdint>

#include "optim/engine_ops.h"

namespace so {

// The sum of squares decides by how much a step is clipped, so its order is part of the contract, the same for any
// number of threads, any instruction set and any device. The elements are cut in blocks of `block`; element i of a
// block goes to lane i mod `lanes`, and each lane adds in order; the lanes are added by halves (lane j and lane j + 16,
// then j + 8, and so on). The blocks' sums are added in the same way with `block_lanes` lanes: a GPU adds millions of
// blocks, too many for one after another.
//
// It is a double sum because
//  - the square of an fp32 is exact in double (24 + 24 bits of significand in 53; exponents from 2^-298 to 2^256 in
//    2^-1022 to 2^1023), so a fused and a separate multiply-add agree;
//  - it cannot overflow: 2^63 squares below 2^256 stay below 2^319. So the sum is finite exactly if every element is,
//    and only blocks whose sum is not are searched for the elements to blame.
struct StatsOrder {
  static constexpr std::int64_t block = 1 << 12;  // 16 KB of fp32: in a CPU's first cache
  static constexpr int lanes = 32, block_lanes = 1024;
};

constexpr std::int64_t stats_blocks(std::int64_t elements) {
  return (elements + StatsOrder::block - 1) / StatsOrder::block;
}

// Bug if the arguments are not what EngineOps asks for.
void check_grad_stats(std::span<const StatsOf> gradients, const Tensor& scratch);
void check_cast(std::span<const DeviceCast> casts);
void check_add(const Tensor& out, const Tensor& in);
void check_sum_of_ranks(std::span<const RankSum> sums, int rank);

}  // namespace so
