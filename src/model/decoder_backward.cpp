// The backward pass of the decoder. Formulas are the plain chain rule of decoder.cpp, read bottom to top.
#include "base/error.h"
#include "model/decoder.h"
#include "model/decoder_activations.h"

namespace so {

void Decoder::layer_backward(Stream& stream, std::int64_t layer, const DeviceBatch& batch, WeightSource& weights,
                             GradientSink& gradients, Arena& arena, Activations& a, Tensor dresidual) const {
  Arena::Scope scope(arena);
  const ParameterIndex::Layer& p = index_.layers[static_cast<std::size_t>(layer)];
  const DecoderSpec& s = spec_;
  const DType t = settings_.compute;
  const std::int64_t n = batch.tokens();
  const auto grad_linear = [&](int first, int count, int bias, Tensor dy, Tensor x) {
    const auto dw = gradients.gradient(first, count);
    ops_.linear_grad_weight(stream, dw.tensor, dy, x, dw.mode);
    if (bias < 0) return;
    const auto db = gradients.gradient(bias, count);
    ops_.linear_grad_bias(stream, db.tensor, dy, db.mode);
  };
  weights.require_weights(layer_unit(layer), stream);

  // Feed-forward block. dresidual is the gradient of middle + down(activated).
  Tensor dnormed = arena.acquire("gradient of a norm", t, {n, s.hidden});
  {
    Arena::Scope block(arena);
    Tensor dactivated = arena.acquire("gradient of activated", t, {n, s.intermediate});
    ops_.linear_grad_input(stream, dactivated, dresidual, weights.weight(p.down), Accumulate::overwrite);
    grad_linear(p.down, 1, p.down_bias, dresidual, a.activated);
    Tensor dgate_up = a.gate_up;
    ops_.swiglu_grad(stream, dgate_up, dactivated, a.gate_up, Tensor());
    ops_.linear_grad_input(stream, dnormed, dgate_up, weights.weight(p.gate_up, 2), Accumulate::overwrite);
    grad_linear(p.gate_up, 2, p.gate_up_bias, dgate_up, a.normed2);
    const auto dw = gradients.gradient(p.post_attention_norm);
    ops_.rms_norm_grad(stream, dresidual, dw.tensor, dnormed, dresidual, a.middle, a.inv_rms2,
                       weights.weight(p.post_attention_norm), dw.mode);
  }

  // Attention block. dresidual is now the gradient of x + o(attention).
  {
    Arena::Scope block(arena);
    Tensor dattention = arena.acquire("gradient of attention", t, {n, s.q_width()});
    Tensor dqkv = arena.acquire("gradient of qkv", t, {n, s.qkv_width()});
    ops_.linear_grad_input(stream, dattention, dresidual, weights.weight(p.o), Accumulate::overwrite);
    grad_linear(p.o, 1, p.o_bias, dresidual, a.attention);
    const Heads dq{dqkv, 0, s.heads, s.head_dim}, dk{dqkv, s.q_width(), s.kv_heads, s.head_dim},
        dv{dqkv, s.q_width() + s.kv_width(), s.kv_heads, s.head_dim};
    ops_.attention_grad(stream, dq, dk, dv, {dattention, 0, s.heads, s.head_dim}, a.attention_heads(s), a.lse, a.q(s),
                        a.k(s), a.v(s), spans(batch), Tensor());
    const auto rotate_back = [&](Heads d, Heads raw, int norm, Tensor inv_rms) {
      if (norm < 0)
        return ops_.rotary_grad(stream, d, d, raw, batch.positions, rope_, {}, Tensor(), Accumulate::overwrite);
      const auto dw = gradients.gradient(norm);
      ops_.rotary_grad(stream, d, d, raw, batch.positions, rope_, {weights.weight(norm), s.rms_epsilon, inv_rms},
                       dw.tensor, dw.mode);
    };
    rotate_back(dq, a.raw_q(s), p.q_norm, a.q_inv_rms);
    rotate_back(dk, a.raw_k(s), p.k_norm, a.k_inv_rms);
    ops_.linear_grad_input(stream, dnormed, dqkv, weights.weight(p.qkv, 3), Accumulate::overwrite);
    grad_linear(p.qkv, 3, p.qkv_bias, dqkv, a.normed1);
    const auto dw = gradients.gradient(p.input_norm);
    ops_.rms_norm_grad(stream, dresidual, dw.tensor, dnormed, dresidual, a.x, a.inv_rms1, weights.weight(p.input_norm),
                       dw.mode);
  }
  weights.release_weights(layer_unit(layer), stream);
  gradients.gradients_ready(layer_unit(layer), stream);
}

void Decoder::forward_backward(Stream& stream, const DeviceBatch& batch, WeightSource& weights, GradientSink& gradients,
                               Arena& arena, Tensor losses, float grad_scale) const {
  Arena::Scope scope(arena);
  const std::int64_t n = batch.tokens();
  const DType t = settings_.compute;
  const auto layers = static_cast<std::size_t>(spec_.layers);
  Tensor dresidual = arena.acquire("gradient of the residual", t, {n, spec_.hidden});
  Carry carry(arena, t, n, spec_.hidden);

  // What is kept for backward: everything, or each layer's input, with one set of the rest that all layers share.
  std::vector<Activations> kept(layers);
  Activations shared;
  if (settings_.recompute) {
    shared = acquire_activations(arena, n);
    for (Activations& a : kept) {
      a = shared;
      a.x = arena.acquire("layer input", t, {n, spec_.hidden});
    }
  } else {
    for (Activations& a : kept) a = acquire_activations(arena, n);
  }

  embed(stream, batch, weights, kept[0].x);
  carry.x = kept[0].x;
  for (std::size_t layer = 0; layer < layers; ++layer)
    layer_forward(stream, static_cast<std::int64_t>(layer), batch, weights, kept[layer], carry, nullptr, false);

  // Head: final norm, projection and loss, and straight back through them.
  {
    Arena::Scope head(arena);
    Tensor x = settings_.recompute ? shared.x : arena.acquire("final input", t, {n, spec_.hidden});
    Tensor inv_rms = arena.acquire("inverse rms", DType::f32, {n});
    Tensor normed = arena.acquire("final normed", t, {n, spec_.hidden});
    Tensor dnormed = arena.acquire("gradient of a norm", t, {n, spec_.hidden});
    require_head(weights, stream);
    ops_.add_rms_norm(stream, normed, x, inv_rms, carry.x, carry.delta, weights.weight(index_.final_norm),
                      spec_.rms_epsilon);
    Ops::LinearCrossEntropy loss;
    loss.hidden = normed;
    loss.weight = weights.weight(index_.lm_head);
    loss.targets = batch.targets;
    loss.losses = losses;
    loss.dhidden = dnormed;
    const auto dhead = gradients.gradient(index_.lm_head);
    loss.dweight = dhead.tensor;
    loss.dweight_mode = dhead.mode;
    loss.grad_scale = grad_scale;
    loss.workspace = arena.acquire("logits chunk", DType::f32, {loss_rows(n), spec_.vocab});
    ops_.linear_cross_entropy(stream, loss);
    const auto dnorm = gradients.gradient(index_.final_norm);
    ops_.rms_norm_grad(stream, dresidual, dnorm.tensor, dnormed, Tensor(), x, inv_rms,
                       weights.weight(index_.final_norm), dnorm.mode);
    release_head(weights, stream);
    gradients.gradients_ready(head_unit(spec_), stream);
  }

  for (std::size_t layer = layers; layer-- > 0;) {
    const auto l = static_cast<std::int64_t>(layer);
    if (settings_.recompute) {
      Carry again = carry;
      again.x = kept[layer].x;
      again.delta = Tensor();
      layer_forward(stream, l, batch, weights, kept[layer], again, nullptr, true);
    }
    layer_backward(stream, l, batch, weights, gradients, arena, kept[layer], dresidual);
  }
  const auto dtable = gradients.gradient(index_.embedding);
  ops_.embedding_grad(stream, dtable.tensor, dresidual, batch.ids, dtable.mode);
  gradients.gradients_ready(0, stream);
}

}  // namespace so
