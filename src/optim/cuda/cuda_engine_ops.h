// EngineOps on a GPU. A file an operation.
#pragma once

#include "optim/engine_ops.h"

namespace so {

class CudaEngineOps final : public EngineOps {
 public:
  void grad_stats(Stream&, GradStats* out, Tensor grad, Tensor scratch) override;
  void cast(Stream&, Tensor out, Tensor in) override;
  void add(Stream&, Tensor out, Tensor in) override;
  void sum_of_ranks(Stream&, Tensor out, Accumulate mode, Tensor own, Tensor others, int rank) override;
};

}  // namespace so
