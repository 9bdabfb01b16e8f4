// EngineOps on a GPU. A file an operation.
#pragma once

#include "optim/engine_ops.h"

namespace so {

class CudaEngineOps final : public EngineOps {
 public:
  void grad_stats(Stream&, std::span<const StatsOf> gradients, Tensor scratch) override;
  using EngineOps::cast;
  void cast(Stream&, std::span<const DeviceCast> casts) override;
  void copy(Stream&, std::span<const DeviceCopy> copies) override;
  void add(Stream&, Tensor out, Tensor in) override;
  void sum_of_ranks(Stream&, std::span<const RankSum> sums, Accumulate mode, int rank) override;

  // Of the current device, the kernels that run beside streams that wait for other ranks. CUDA loads a kernel at its
  // first use, for which it may wait until the whole device is idle.
  static void load_cast();
  static void load_copy();
  static void load_sum_of_ranks();
};

}  // namespace so
