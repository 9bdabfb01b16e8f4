#include "base/error.h"
#include "ops/cpu/cpu_ops.h"

namespace so {

void CpuOps::route(Stream&, const Routing&, Tensor, bool) { SO_CHECK(false, "route is not there yet"); }
void CpuOps::route_grad(Stream&, Tensor, Tensor, const Routing&, Tensor, bool, Tensor, float) {
  SO_CHECK(false, "route_grad is not there yet");
}
void CpuOps::router_load(Stream&, Tensor, Tensor, const Routing&, Tensor, Accumulate) {
  SO_CHECK(false, "router_load is not there yet");
}
void CpuOps::add_router_loss(Stream&, Tensor, Tensor, Tensor, Tensor, float) {
  SO_CHECK(false, "add_router_loss is not there yet");
}
void CpuOps::gather_rows(Stream&, Tensor, Tensor, const Routing&) { SO_CHECK(false, "gather_rows is not there yet"); }
void CpuOps::sum_rows(Stream&, Tensor, Tensor, Tensor, const Routing&) { SO_CHECK(false, "sum_rows is not there yet"); }
void CpuOps::expert_bias_grad(Stream&, Tensor, Tensor, const Routing&, bool, Accumulate) {
  SO_CHECK(false, "expert_bias_grad is not there yet");
}
void CpuOps::expert_bias_dot(Stream&, Tensor, Tensor, Tensor, const Routing&) {
  SO_CHECK(false, "expert_bias_dot is not there yet");
}
void CpuOps::expert_activation(Stream&, Tensor, Tensor, Tensor, const ExpertActivation&, const Routing&) {
  SO_CHECK(false, "expert_activation is not there yet");
}
void CpuOps::expert_activation_grad(Stream&, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, const ExpertActivation&,
                                    const Routing&, Accumulate) {
  SO_CHECK(false, "expert_activation_grad is not there yet");
}

}  // namespace so
