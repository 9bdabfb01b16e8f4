// The backward pass of AttentionBlock. Formulas are the plain chain rule of attention_block.cpp, read bottom to top.
#include "model/decoder/attention_block.h"
#include "model/decoder/block_norms.h"
#include "model/decoder/gradients.h"
#include "model/decoder/mixer_input.h"

namespace so {

void AttentionBlock::backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations a, Tensor dnormed,
                              Tensor dresidual, std::int64_t tile, Tensor room) const {
  const AttentionShape& s = shape_;
  const DType t = context_.activations();
  const std::int64_t n = pass.tokens();
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);

  if (!a.qk) {
    a.qk = arena.acquire("rotated qk", t, {n, s.rotated_width()});
    rotate(pass, a);
  }
  const Tensor dattention = in_room(arena, "gradient of attention", t, n, s.q_width(), room);
  const Tensor dqkv = arena.acquire("gradient of qkv", t, {n, s.qkv_width()});
  const AttentionHeads gradient = acquire_gradient(pass, dqkv);
  for_each_gradient_tile(
      ops_, pass, gradients, {p_.attention_output_norm, p_.o, p_.o_bias}, tile,
      [&](GradientSink& sink, std::int64_t first, std::int64_t count) {
        const LayerActivations part = tile < n ? a.rows(first, count) : a;
        const Tensor dout =
            block_output_backward(context_, pass, sink, p_.attention_output_norm, part.attention_out,
                                  part.attention_out_inv_rms, dnormed.rows(0, count), dresidual.rows(first, count));
        const Tensor d = dattention.rows(first, count);
        const ProjectionGradient of_output(o_, pass, sink, dout);
        of_output.of_input(d);
        of_output.of_weight(s.output_gate ? gate_backward(pass, part, d, dqkv.rows(first, count)) : part.mixed);
      });
  attend_backward(pass, gradients, a, dattention, gradient);
  share_gradient(pass, gradient);
  rotate_back(pass, gradients, a, gradient, dqkv);
  projections_backward(context_, pass, gradients, qkv_, p_, a, dqkv, dnormed, dresidual, tile);
}

AttentionHeads AttentionBlock::acquire_gradient(const DecoderPass& pass, Tensor dqkv) const {
  const AttentionShape& s = shape_;
  const DType t = context_.activations();
  const std::int64_t n = pass.tokens();
  AttentionHeads gradient{queries_in(dqkv, s), {}, {}};
  // Between gates there is room for the gradient of the queries only once they are turned back.
  if (s.output_gate)
    gradient.q = {pass.arena.acquire("gradient of queries", t, {n, s.q_width()}), 0, s.heads, s.head_dim};
  if (s.takes_keys || gives_keys_) {
    const Tensor rows = s.takes_keys && last_taker_
                            ? pass.across.keys[static_cast<std::size_t>(keys_of_)].gradient
                            : pass.arena.acquire("gradient of keys and values", t, {n, 2 * s.kv_width()});
    gradient.k = taken_keys(rows, s), gradient.v = taken_values(rows, s);
    return gradient;
  }
  gradient.k = keys_in(dqkv, s);
  // Values that are keys have no columns of their own.
  gradient.v = s.keys_are_values
                   ? Heads{pass.arena.acquire("gradient of values", t, {n, s.kv_width()}), 0, s.kv_heads, s.head_dim}
                   : values_in(dqkv, s);
  return gradient;
}

void AttentionBlock::share_gradient(const DecoderPass& pass, const AttentionHeads& gradient) const {
  if (!gives_keys_ && (!shape_.takes_keys || last_taker_)) return;
  const Tensor own = gradient.k.rows, sum = pass.across.keys[static_cast<std::size_t>(keys_of_)].gradient;
  ops_.add_scaled(pass.stream, gives_keys_ ? own : sum, sum, own, 1);
}

Tensor AttentionBlock::gate_backward(const DecoderPass& pass, const LayerActivations& a, Tensor dattention,
                                     Tensor dqkv) const {
  const AttentionShape& s = shape_;
  Tensor gated = a.gated, again;
  if (!gated) gated = again = pass.arena.acquire("gated attention", context_.activations(), {dqkv.dim(0), s.q_width()});
  const Heads d{dattention, 0, s.heads, s.head_dim};
  ops_.sigmoid_gate_grad(pass.stream, {.dx = d,
                                       .dgate = gates_in(dqkv, s),
                                       .gated = {again, 0, s.heads, s.head_dim},
                                       .dout = d,
                                       .x = a.attention_heads(s),
                                       .gate = gates_in(a.qkv, s)});
  return gated;
}

void AttentionBlock::attend_backward(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a,
                                     Tensor dattention, const AttentionHeads& gradient) const {
  if (pass.batch.is_slice()) return sliced_.backward(pass, gradients, a, dattention, gradient);
  const AttentionShape& s = shape_;
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);
  const AttentionSpans spans = setup_.spans(pass);
  const Tensor scratch = setup_.acquire_gradient_scratch(arena, setup_.size(spans, pass.tokens(), pass.tokens()));
  const GradientSink::Target dsinks =
      p_.sinks ? vector_gradient(gradients, arena, p_.sinks, spans.sinks) : GradientSink::Target{};
  const AttentionHeads heads = attended(pass, a);
  ops_.attention_grad(
      pass.stream,
      {.dq = gradient.q,
       .dk = gradient.k,
       .dv = gradient.v,
       .dsinks = dsinks.tensor,
       .dsinks_mode = dsinks.mode,
       .dout = {dattention, 0, s.heads, s.head_dim},
       .forward = {.out = a.attention_heads(s), .lse = a.lse, .q = heads.q, .k = heads.k, .v = heads.v, .spans = spans},
       .scratch = scratch});
}

void AttentionBlock::rotate_back(const DecoderPass& pass, GradientSink& gradients, const LayerActivations& a,
                                 const AttentionHeads& gradient, Tensor dqkv) const {
  const AttentionShape& s = shape_;
  const auto turn_back = [&](Heads din, Heads d, Heads raw, Tensor table, Joined weight, Tensor inv_rms) {
    Ops::RotaryGrad g{.din = din, .dout = d, .in = raw, .positions = pass.batch.positions, .table = table};
    g.pairs = rotation().pairs;
    const HeadNorm norm{pass.weight(weight), spec_.rms_epsilon, inv_rms, spec_.norm_offset};
    if (!weight || spec_.projection_norm) {
      if (table) ops_.rotary_grad(pass.stream, g);
      if (!weight) return;
    }
    const auto dw = vector_gradient(gradients, pass.arena, weight, norm.weight);
    if (spec_.projection_norm)
      return ops_.projection_norm_grad(
          pass.stream, {.din = d, .dout = d, .in = raw, .norm = norm, .dweight = dw.tensor, .dweight_mode = dw.mode});
    g.norm = norm;
    g.dweight = dw.tensor;
    g.dweight_mode = dw.mode;
    ops_.rotary_grad(pass.stream, g);
  };
  turn_back(queries_in(dqkv, s), gradient.q, a.raw_q(s), rope(RotatedHeads::queries), p_.q_norm, a.q_inv_rms);
  if (s.takes_keys) return;
  turn_back(keys_in(dqkv, s), gradient.k, a.raw_k(s), rope(RotatedHeads::keys), p_.k_norm, a.k_inv_rms);
  // Keys that are values too have the sum of both gradients.
  if (s.value_norm)
    ops_.head_norm_grad(pass.stream, {.din = values_in(dqkv, s),
                                      .dout = gradient.v,
                                      .in = a.raw_v(s),
                                      .inv_rms = a.v_inv_rms,
                                      .din_mode = s.keys_are_values ? Accumulate::add : Accumulate::overwrite});
}

}  // namespace so
