#include "model/decoder/delta_part.h"

namespace so {
namespace {

PackedDocuments documents_of(const DecoderPass& pass) { return {pass.batch.spans.cu_q, pass.batch.spans.documents}; }

// Queries, keys and values, one behind the other in a row.
AttentionHeads heads_in(Tensor rows, const DeltaPart& part, const DeltaSpec& d) {
  const std::int64_t k_width = part.k_heads * d.k_dim;
  return {{rows, 0, part.k_heads, d.k_dim},
          {rows, k_width, part.k_heads, d.k_dim},
          {rows, 2 * k_width, part.v_heads, d.v_dim}};
}

Heads convolved_in(Tensor rows, const DeltaPart& part, const DeltaSpec& d) {
  return {rows, 0, 1, part.convolved_width(d)};
}
Heads b_in(Tensor rows, const DeltaPart& part) { return {rows, part.b_column, 1, part.v_heads}; }
Heads a_in(Tensor rows, const DeltaPart& part) { return {rows, part.b_column + part.v_heads, 1, part.v_heads}; }

Ops::CausalConv convolution(const DecoderContext& context, const DecoderPass& pass, const DeltaPart& part,
                            const LayerCache* cache) {
  const DeltaSpec& d = context.spec.delta;
  return {.out = convolved_in(part.convolved, part, d),
          .x = convolved_in(part.projected, part, d),
          .weight = part.convolution,
          .documents = documents_of(pass),
          .before = cache != nullptr ? cache->convolution : Tensor()};
}

Ops::DeltaGates gates(const DeltaPart& part) {
  return {.decay = part.decay,
          .rate = part.rate,
          .a = a_in(part.projected, part),
          .b = b_in(part.projected, part),
          .a_log = part.a_log,
          .dt_bias = part.dt_bias};
}

Ops::DeltaRule rule(const DecoderContext& context, const DecoderPass& pass, const DeltaPart& part,
                    const LayerCache* cache) {
  const DeltaSpec& d = context.spec.delta;
  const AttentionHeads heads = heads_in(part.convolved, part, d);
  return {.out = {part.mixed, 0, part.v_heads, d.v_dim},
          .q = heads.q,
          .k = heads.k,
          .v = heads.v,
          .decay = part.decay,
          .rate = part.rate,
          .documents = documents_of(pass),
          .state = cache != nullptr ? cache->state : Tensor()};
}

DeltaSize size_of_rule(const DecoderContext& context, const DecoderPass& pass, const DeltaPart& part) {
  const DeltaSpec& d = context.spec.delta;
  return {part.projected.dim(0), pass.batch.spans.documents, part.k_heads, part.v_heads, d.k_dim, d.v_dim,
          context.activations()};
}

}  // namespace

void acquire_rule_inputs(const DecoderContext& context, Arena& arena, std::int64_t rows, std::int64_t k_heads,
                         std::int64_t v_heads, LayerActivations& a) {
  const DeltaSpec& d = context.spec.delta;
  const std::int64_t width = 2 * k_heads * d.k_dim + v_heads * d.v_dim;
  acquire_if_empty(arena, a.convolved, "convolved", context.activations(), {rows, width});
  acquire_if_empty(arena, a.decay, "decay", DType::f32, {rows, v_heads});
  acquire_if_empty(arena, a.rate, "rate", DType::f32, {rows, v_heads});
}

void make_rule_inputs(const DecoderContext& context, const DecoderPass& pass, const DeltaPart& part,
                      const LayerCache* cache) {
  context.ops.causal_conv(pass.stream, convolution(context, pass, part, cache));
  context.ops.delta_gates(pass.stream, gates(part));
}

void apply_rule(const DecoderContext& context, const DecoderPass& pass, const DeltaPart& part,
                const LayerCache* cache) {
  Arena::Scope scope(pass.arena);
  Ops::DeltaRule call = rule(context, pass, part, cache);
  const std::size_t scratch = context.ops.memory().delta_rule(size_of_rule(context, pass, part));
  call.scratch = acquire_bytes(pass.arena, "delta scratch", scratch);
  context.ops.delta_rule(pass.stream, call);
}

void rule_backward(const DecoderContext& context, const DecoderPass& pass, const DeltaPart& part, Tensor dmixed,
                   Tensor dprojected, const DeltaTargets& targets) {
  const DeltaSpec& d = context.spec.delta;
  Ops& ops = context.ops;
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);
  const std::int64_t rows = dmixed.dim(0);
  const Tensor dconvolved =
      arena.acquire("gradient of convolved", context.activations(), {rows, part.convolved_width(d)});
  const Tensor ddecay = arena.acquire("gradient of decay", DType::f32, {rows, part.v_heads}),
               drate = arena.acquire("gradient of rate", DType::f32, {rows, part.v_heads});
  {
    Arena::Scope of_rule(arena);
    const AttentionHeads gradient = heads_in(dconvolved, part, d);
    const std::size_t scratch = ops.memory().delta_rule_grad(size_of_rule(context, pass, part));
    ops.delta_rule_grad(pass.stream, {.dq = gradient.q,
                                      .dk = gradient.k,
                                      .dv = gradient.v,
                                      .ddecay = ddecay,
                                      .drate = drate,
                                      .dout = {dmixed, 0, part.v_heads, d.v_dim},
                                      .forward = rule(context, pass, part, nullptr),
                                      .scratch = acquire_bytes(arena, "delta scratch", scratch)});
  }
  ops.delta_gates_grad(pass.stream, {.da = a_in(dprojected, part),
                                     .db = b_in(dprojected, part),
                                     .da_log = targets.a_log.tensor,
                                     .ddt_bias = targets.dt_bias.tensor,
                                     .da_log_mode = targets.a_log.mode,
                                     .ddt_bias_mode = targets.dt_bias.mode,
                                     .ddecay = ddecay,
                                     .drate = drate,
                                     .forward = gates(part)});
  ops.causal_conv_grad(pass.stream, {.dx = convolved_in(dprojected, part, d),
                                     .dweight = targets.convolution.tensor,
                                     .dweight_mode = targets.convolution.mode,
                                     .dout = convolved_in(dconvolved, part, d),
                                     .forward = convolution(context, pass, part, nullptr)});
}

}  // namespace so
