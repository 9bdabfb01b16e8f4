// EngineOps on the CPU device's threads, in SIMD. A file an operation.
#pragma once

#include "optim/engine_ops.h"

namespace so {

class CpuEngineOps final : public EngineOps {
 public:
  void grad_stats(Stream&, std::span<const StatsOf> gradients, Tensor scratch) override;
  using EngineOps::cast;
  void cast(Stream&, std::span<const DeviceCast> casts) override;
  void copy(Stream&, std::span<const DeviceCopy> copies) override;
  void add(Stream&, Tensor out, Tensor in) override;
  void sum_of_ranks(Stream&, std::span<const RankSum> sums, Accumulate mode, int rank) override;
};

}  // namespace so
