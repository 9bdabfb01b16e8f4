// Argument checks of the mixture-of-experts ops, shared by the backends: Bug with the op, the argument and both shapes.
#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace so {

// The limits of the backends: a GPU counts a block's rows of each expert in shared memory and keeps a token's choices
// in the lanes of a warp.
inline constexpr std::int64_t kMaxExperts = 1024, kMaxChoices = 32;

struct RoutingSize {
  std::int64_t tokens = 0, choices = 0, experts = 0, rows = 0;  // N, K, E, R
};

// The sizes of a product of experts: x T [rows, in], y T [rows, out], w [experts, out, in] or [experts, in, out].
struct ExpertProductSize {
  std::int64_t rows, in, out, experts;
};

RoutingSize expect_routing(const char* op, const Routing& routing);
RoutingSize expect_route(const char* op, const Routing& routing, const Tensor& logits, const RouterRule& rule);
RoutingSize expect_route_grad(const char* op, const Tensor& dlogits, const Tensor& dweights, const Routing& routing,
                              const Tensor& logits, const RouterRule& rule, const Tensor& counts);
RoutingSize expect_router_load(const char* op, const Tensor& counts, const Tensor& shares, const Routing& routing,
                               const Tensor& logits);
void expect_router_loss(const char* op, const Tensor& losses, const Tensor& targets, const Tensor& counts,
                        const Tensor& shares);
RoutingSize expect_gather_rows(const char* op, const Tensor& out, const Tensor& x, const Routing& routing);
RoutingSize expect_sum_rows(const char* op, const Tensor& out, const Tensor& y, const Tensor& bias,
                            const Routing& routing);
// The weight's side may be f32 whatever the others are when it is a gradient.
ExpertProductSize expect_expert_product(const char* op, const Tensor& x, const Tensor& y, const Tensor& w,
                                        ExpertLayout layout, const Tensor& offsets, bool w_is_gradient);
RoutingSize expect_expert_bias_grad(const char* op, const Tensor& dbias, const Tensor& dy, const Routing& routing);
RoutingSize expect_expert_bias_dot(const char* op, const Tensor& dweights, const Tensor& dout, const Tensor& bias,
                                   const Routing& routing);
RoutingSize expect_scale_experts(const char* op, const Tensor& out, const Tensor& scale, const Routing& routing);
RoutingSize expect_scale_experts_grad(const char* op, const Ops::ScaleExpertsGrad& g);
// Of a routing that has weights alone, only the rows are known.
RoutingSize expect_expert_activation(const char* op, const Tensor& out, const Tensor& gate_up, const Tensor& bias,
                                     const ExpertActivation& activation, const Routing& routing);
RoutingSize expect_expert_activation_grad(const char* op, const Ops::ExpertActivationGrad& g);
void expect_row_gate(const char* op, const Tensor& gates, const Tensor& x, const Tensor& weight);
void expect_row_gate_grad(const char* op, const Ops::RowGateGrad& g);

}  // namespace so
