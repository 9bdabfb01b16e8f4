#include "base/error.h"
#include "ops/cuda/cuda_ops.h"

namespace so {

void CudaOps::expert_linear(Stream&, Tensor, Tensor, Tensor, ExpertLayout, Tensor) {
  SO_CHECK(false, "expert_linear is not there yet");
}
void CudaOps::expert_linear_grad_input(Stream&, Tensor, Tensor, Tensor, ExpertLayout, Tensor) {
  SO_CHECK(false, "expert_linear_grad_input is not there yet");
}
void CudaOps::expert_linear_grad_weight(Stream&, Tensor, Tensor, Tensor, ExpertLayout, Tensor, Accumulate) {
  SO_CHECK(false, "expert_linear_grad_weight is not there yet");
}

}  // namespace so
