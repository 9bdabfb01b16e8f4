#include "model/decoder/dense_with_experts.h"

#include "base/error.h"
#include "model/decoder/block_norms.h"

namespace so {
namespace {

// `a` as the MLP sees it, which does not know of other products in the layer.
LayerActivations of_dense(const LayerActivations& a) {
  LayerActivations dense = a;
  dense.gate_up = a.shared_gate_up;
  dense.activated = a.shared_activated;
  return dense;
}

}  // namespace

DenseWithExperts::DenseWithExperts(const DecoderContext& context, std::int64_t layer)
    : context_(context),
      p_(context.parameters(layer)),
      dense_(context, layer, {p_.shared_gate_up, {}, p_.shared_down, {}}, context.spec.experts.shared_intermediate),
      experts_(context, layer) {
  SO_CHECK(context.spec.input_norms && context.spec.output_norms, "an MLP and experts without norms around them");
}

std::vector<Joined> DenseWithExperts::parameters() const {
  std::vector<Joined> all = experts_.parameters();
  for (const Joined& parameter : dense_.parameters()) all.push_back(parameter);
  for (const Joined& norm : {p_.shared_output_norm, p_.experts_input_norm, p_.experts_output_norm, p_.router_norm})
    all.push_back(norm);
  return all;
}

void DenseWithExperts::complete_routing(Arena& arena, std::int64_t n, LayerActivations& a) const {
  experts_.complete_routing(arena, n, a);
}

void DenseWithExperts::complete_gate_up(Arena& arena, std::int64_t n, LayerActivations& a) const {
  experts_.complete_gate_up(arena, n, a);
  LayerActivations dense = of_dense(a);
  dense_.complete_gate_up(arena, n, dense);
  a.shared_gate_up = dense.gate_up;
}

void DenseWithExperts::complete_outputs(Arena& arena, std::int64_t n, LayerActivations& a) const {
  acquire_output_norm(context_, arena, n, a.shared_out, a.shared_out_inv_rms);
  acquire_output_norm(context_, arena, n, a.experts_out, a.experts_out_inv_rms);
}

void DenseWithExperts::complete(Arena& arena, std::int64_t n, LayerActivations& a) const {
  complete_outputs(arena, n, a);
  experts_.complete(arena, n, a);
  LayerActivations dense = of_dense(a);
  dense_.complete(arena, n, dense);
  a.shared_gate_up = dense.gate_up;
  a.shared_activated = dense.activated;
}

LayerActivations DenseWithExperts::of_experts(const DecoderPass& pass, const LayerActivations& a) const {
  LayerActivations experts = a;
  const auto norm = [&](const char* name, Joined weight) {
    ProductInput normed = pass.arena.acquire(name, context_.activations(), {a.middle.dim(0), context_.spec.hidden});
    // Its inverse rms is that of the block's own norm: they differ in their weights alone.
    block_input(context_, pass, weight, normed, a.inv_rms2, a.middle, Tensor(), Tensor());
    return normed.values;
  };
  experts.normed2 = norm("input of experts", p_.experts_input_norm);
  experts.router_input = norm("input of the router", p_.router_norm);
  return experts;
}

void DenseWithExperts::forward(const DecoderPass& pass, const LayerActivations& a, Tensor out, bool first_rows) const {
  dense_.forward(pass, of_dense(a), a.shared_out, first_rows);
  block_output_norm(context_, pass, p_.shared_output_norm, out, a.shared_out, a.shared_out_inv_rms);
  Arena::Scope scope(pass.arena);
  const LayerActivations experts = of_experts(pass, a);
  experts_.forward(pass, experts, a.experts_out, first_rows);
  // The experts' input is of no other use any more.
  block_output_norm(context_, pass, p_.experts_output_norm, experts.normed2.values, a.experts_out,
                    a.experts_out_inv_rms);
  context_.ops.add_scaled(pass.stream, out, out, experts.normed2.values, 1);
}

void DenseWithExperts::backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations& a, Tensor dnormed,
                                Tensor dout, Tensor dresidual) const {
  Arena::Scope scope(pass.arena);
  const auto through_norm = [&](Joined norm, Tensor x, Tensor inv_rms, Tensor d, Tensor residual, Tensor dx) {
    norm_backward(context_, pass, gradients, norm, x, inv_rms, d, residual, dx);
  };
  const Tensor dexperts =
      pass.arena.acquire("gradient of experts", context_.activations(), {dout.dim(0), context_.spec.hidden});
  through_norm(p_.experts_output_norm, a.experts_out, a.experts_out_inv_rms, dout, Tensor(), dexperts);
  through_norm(p_.shared_output_norm, a.shared_out, a.shared_out_inv_rms, dout, Tensor(), dnormed);
  {
    Arena::Scope of_mlp(pass.arena);
    LayerActivations dense = of_dense(a);
    dense_.backward(pass, gradients, dense, dnormed, dnormed, Tensor());
  }
  LayerActivations experts = of_experts(pass, a);
  experts_.backward(pass, gradients, experts, dexperts, dexperts, Tensor());
  through_norm(p_.experts_input_norm, a.middle, a.inv_rms2, dexperts, dresidual, dresidual);
  through_norm(p_.router_norm, a.middle, a.inv_rms2, experts.router_input, dresidual, dresidual);
}

}  // namespace so
