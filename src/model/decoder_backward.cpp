// The backward pass of the decoder. Formulas are the plain chain rule of decoder.cpp, read bottom to top. What a layer
// did not keep is computed again just before it is used, by the calls of the forward pass, so to the same bits.
#include <algorithm>

#include "base/error.h"
#include "model/decoder.h"
#include "model/decoder_activations.h"
#include "model/decoder_gradients.h"

namespace so {

void Decoder::block_input_backward(const Pass& pass, GradientSink& gradients, Joined norm, Tensor sum, Tensor inv_rms,
                                   Tensor dnormed, Tensor dresidual) const {
  if (!norm) return ops_.add_scaled(pass.stream, dresidual, dresidual, dnormed, 1);
  const auto dw = vector_gradient(gradients, pass.arena, norm, pass.weight(norm));
  ops_.rms_norm_grad(pass.stream, {.dx = dresidual,
                                   .dweight = dw.tensor,
                                   .dout = dnormed,
                                   .residual = dresidual,
                                   .x = sum,
                                   .inv_rms = inv_rms,
                                   .weight = pass.weight(norm),
                                   .dweight_mode = dw.mode,
                                   .weight_offset = spec_.norm_offset});
}

Tensor Decoder::block_output_backward(const Pass& pass, GradientSink& gradients, Joined norm, Tensor raw,
                                      Tensor inv_rms, Tensor room, Tensor dresidual) const {
  Tensor dout = dresidual;
  if (const auto scale = static_cast<float>(spec_.residual_scale); scale != 1) {
    ops_.add_scaled(pass.stream, room, Tensor(), dout, scale);
    dout = room;
  }
  if (!norm) return dout;
  const auto dw = vector_gradient(gradients, pass.arena, norm, pass.weight(norm));
  ops_.rms_norm_grad(pass.stream, {.dx = room,
                                   .dweight = dw.tensor,
                                   .dout = dout,
                                   .x = raw,
                                   .inv_rms = inv_rms,
                                   .weight = pass.weight(norm),
                                   .dweight_mode = dw.mode,
                                   .weight_offset = spec_.norm_offset});
  return room;
}

void Decoder::remake_mlp_out(const Pass& pass, std::int64_t layer, Activations& a, Tensor room, Tensor spare) const {
  const DType t = settings_.formats.activations;
  const std::int64_t n = spare.dim(0), f = spec_.intermediate;
  SO_CHECK(room && !a.gate_up, "an MLP's output made again, though its products were kept");
  a.mlp_out = room;
  a.mlp_out_inv_rms = pass.arena.acquire("inverse rms", DType::f32, {n});
  a.gate_up = pass.arena.acquire("gate and up", t, {n, 2 * f});
  Arena::Scope scope(pass.arena);
  Activations again = a;
  again.activated = pass.arena.acquire("activated", t, {n, f});
  mlp_forward(pass, layer, again, spare);
}

// dresidual is the gradient of middle plus what the MLP adds, and then of middle. remade_delta: what attention adds to
// x, if middle must be made of the two; else empty.
void Decoder::mlp_backward(const Pass& pass, std::int64_t layer, GradientSink& gradients, Activations a,
                           Tensor remade_delta, Tensor dnormed, Tensor dresidual) const {
  const ParameterIndex::Layer& p = index(layer);
  Arena::Scope scope(pass.arena);

  if (!a.normed2) {
    a.normed2 = a.middle;
    if (p.mlp_norm)
      a.normed2 = pass.arena.acquire("normed middle", settings_.formats.activations, {dresidual.dim(0), spec_.hidden});
    block_input(pass, p.mlp_norm, a.normed2, a.inv_rms2, a.middle, a.x, remade_delta);
  }
  if (p.mlp_output_norm && !a.mlp_out) remake_mlp_out(pass, layer, a, remade_delta, dnormed);
  const Tensor dout =
      block_output_backward(pass, gradients, p.mlp_output_norm, a.mlp_out, a.mlp_out_inv_rms, dnormed, dresidual);
  if (spec_.layer(layer).experts)
    experts_backward(pass, layer, gradients, a, dnormed, dout);
  else
    dense_backward(pass, layer, gradients, a, dnormed, dout);
  block_input_backward(pass, gradients, p.mlp_norm, a.middle, a.inv_rms2, dnormed, dresidual);
}

void Decoder::dense_backward(const Pass& pass, std::int64_t layer, GradientSink& gradients, Activations& a,
                             Tensor dnormed, Tensor dout) const {
  const ParameterIndex::Layer& p = index(layer);
  const DType t = settings_.formats.activations;
  const std::int64_t n = dout.dim(0), f = spec_.intermediate;
  Stream& stream = pass.stream;
  if (!a.gate_up) {
    a.gate_up = pass.arena.acquire("gate and up", t, {n, 2 * f});
    ops_.linear(stream, a.gate_up, a.normed2, pass.weight(p.gate_up), pass.weight(p.gate_up_bias),
                Accumulate::overwrite);
  }
  Tensor dactivated = pass.arena.acquire("gradient of activated", t, {n, f});
  ops_.linear_grad_input(stream, dactivated, dout, pass.weight(p.down), Accumulate::overwrite);
  Tensor dgate_up = a.gate_up;
  ops_.swiglu_grad(stream, dgate_up, dactivated, a.gate_up, a.activated ? Tensor() : dactivated, spec_.gate);
  grad_linear(ops_, stream, gradients, p.down, p.down_bias, dout, a.activated ? a.activated : dactivated);
  ops_.linear_grad_input(stream, dnormed, dgate_up, pass.weight(p.gate_up), Accumulate::overwrite);
  grad_linear(ops_, stream, gradients, p.gate_up, p.gate_up_bias, dgate_up, a.normed2);
}

void Decoder::mlp_backward_in_tiles(const Pass& pass, std::int64_t layer, GradientSink& gradients, const Activations& a,
                                    Tensor remade_delta, Tensor dresidual, std::int64_t tile) const {
  const ParameterIndex::Layer& p = index(layer);
  const DType t = settings_.formats.activations;
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);
  TiledGradients sums(
      gradients, arena,
      {p.mlp_output_norm, p.down, p.down_bias, p.gate_up, p.gate_up_bias, p.router, p.router_bias, p.mlp_norm});
  for_each_tile(pass.tokens(), tile, [&](std::int64_t first, std::int64_t count) {
    Arena::Scope block(arena);
    Activations part = a.rows(first, count);
    if (!part.middle) {
      part.middle = arena.acquire("after attention", t, {count, spec_.hidden});
      if (spec_.input_norms) part.inv_rms2 = arena.acquire("inverse rms", DType::f32, {count});
    }
    const Tensor dnormed = arena.acquire("gradient of a norm", t, {count, spec_.hidden});
    mlp_backward(pass, layer, sums, part, remade_delta ? remade_delta.rows(first, count) : Tensor(), dnormed,
                 dresidual.rows(first, count));
  });
  sums.finish(ops_, pass.stream);
}

// dresidual is the gradient of x plus what attention adds, and then of x.
void Decoder::attention_backward(const Pass& pass, std::int64_t layer, GradientSink& gradients, Activations a,
                                 Tensor dnormed, Tensor dresidual, std::int64_t tile, Tensor room) const {
  const ParameterIndex::Layer& p = index(layer);
  const DecoderSpec& s = spec_;
  const DType t = settings_.formats.activations;
  const std::int64_t n = pass.tokens();
  Stream& stream = pass.stream;
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);

  if (!a.qk) {
    a.qk = arena.acquire("rotated qk", t, {n, s.q_width() + s.kv_width()});
    rotate(pass, layer, a);
  }
  const Tensor dattention = in_room(arena, "gradient of attention", t, n, s.q_width(), room);
  Tensor dqkv = arena.acquire("gradient of qkv", t, {n, s.qkv_width()});
  const auto in_tiles = [&](std::initializer_list<Joined> parameters, const auto& body) {
    if (tile == n) return body(gradients, 0, n, a);
    Arena::Scope sums_scope(arena);
    TiledGradients sums(gradients, arena, parameters);
    for_each_tile(n, tile, [&](std::int64_t first, std::int64_t count) {
      Arena::Scope block(arena);
      body(sums, first, count, a.rows(first, count));
    });
    sums.finish(ops_, stream);
  };
  in_tiles({p.attention_output_norm, p.o, p.o_bias}, [&](GradientSink& sink, std::int64_t first, std::int64_t count,
                                                         const Activations& part) {
    const Tensor dout =
        block_output_backward(pass, sink, p.attention_output_norm, part.attention_out, part.attention_out_inv_rms,
                              dnormed.rows(0, count), dresidual.rows(first, count));
    ops_.linear_grad_input(stream, dattention.rows(first, count), dout, pass.weight(p.o), Accumulate::overwrite);
    grad_linear(ops_, stream, sink, p.o, p.o_bias, dout, part.attention);
  });
  attend_backward(pass, layer, gradients, a, dattention, dqkv);
  rotate_back(pass, layer, gradients, a, dqkv);
  in_tiles({p.qkv, p.qkv_bias, p.input_norm}, [&](GradientSink& sink, std::int64_t first, std::int64_t count,
                                                  Activations part) {
    const Tensor dtile = dqkv.rows(first, count), dinput = dnormed.rows(0, count);
    ops_.linear_grad_input(stream, dinput, dtile, pass.weight(p.qkv), Accumulate::overwrite);
    if (!part.normed1) {
      part.normed1 = p.input_norm ? arena.acquire("normed input", t, {count, s.hidden}) : part.x;
      block_input(pass, p.input_norm, part.normed1, part.inv_rms1, part.x, Tensor(), Tensor());
    }
    grad_linear(ops_, stream, sink, p.qkv, p.qkv_bias, dtile, part.normed1);
    block_input_backward(pass, sink, p.input_norm, part.x, part.inv_rms1, dinput, dresidual.rows(first, count));
  });
}

Tensor Decoder::acquire_gradient_scratch(Arena& arena, AttentionSize size) const {
  const auto bytes_for = [&](const AttentionSize& of) {
    return settings_.roomy_attention ? ops_.memory().attention_grad_most(of) : ops_.memory().attention_grad(of);
  };
  std::size_t bytes = bytes_for(size);
  if (settings_.most_tokens > 0) {
    size.q_rows = size.k_rows = size.documents = settings_.most_tokens;
    size.longest = std::min(settings_.most_tokens, settings_.longest_document);
    bytes = std::min(bytes, bytes_for(size));
  }
  return acquire_bytes(arena, "attention scratch", bytes);
}

void Decoder::attend_backward(const Pass& pass, std::int64_t layer, GradientSink& gradients, const Activations& a,
                              Tensor dattention, Tensor dqkv) const {
  if (pass.batch.is_slice()) return attend_split_backward(pass, layer, gradients, a, dattention, dqkv);
  const ParameterIndex::Layer& p = index(layer);
  const DecoderSpec& s = spec_;
  const Heads dq{dqkv, 0, s.heads, s.head_dim}, dk{dqkv, s.q_width(), s.kv_heads, s.head_dim},
      dv{dqkv, s.q_width() + s.kv_width(), s.kv_heads, s.head_dim};
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);
  const AttentionSpans spans = this->spans(pass, layer);
  const Tensor scratch = acquire_gradient_scratch(arena, attention_size(spans, pass.tokens(), pass.tokens()));
  const GradientSink::Target dsinks =
      p.sinks ? vector_gradient(gradients, arena, p.sinks, spans.sinks) : GradientSink::Target{};
  ops_.attention_grad(
      pass.stream,
      {.dq = dq,
       .dk = dk,
       .dv = dv,
       .dsinks = dsinks.tensor,
       .dsinks_mode = dsinks.mode,
       .dout = {dattention, 0, s.heads, s.head_dim},
       .forward = {.out = a.attention_heads(s), .lse = a.lse, .q = a.q(s), .k = a.k(s), .v = a.v(s), .spans = spans},
       .scratch = scratch});
}

// dqkv is the gradient of what rotate() made, and then of what it read.
void Decoder::rotate_back(const Pass& pass, std::int64_t layer, GradientSink& gradients, const Activations& a,
                          Tensor dqkv) const {
  const ParameterIndex::Layer& p = index(layer);
  const DecoderSpec& s = spec_;
  const Tensor table = rope(layer);
  const auto turn_back = [&](Heads d, Heads raw, Joined weight, Tensor inv_rms) {
    Ops::RotaryGrad g{.din = d, .dout = d, .in = raw, .positions = pass.batch.positions, .table = table};
    g.pairs = s.rope.pairs;
    const HeadNorm norm{pass.weight(weight), s.rms_epsilon, inv_rms, s.norm_offset};
    if (!weight || s.projection_norm) {
      if (table) ops_.rotary_grad(pass.stream, g);
      if (!weight) return;
    }
    const auto dw = vector_gradient(gradients, pass.arena, weight, norm.weight);
    if (s.projection_norm)
      return ops_.projection_norm_grad(
          pass.stream, {.din = d, .dout = d, .in = raw, .norm = norm, .dweight = dw.tensor, .dweight_mode = dw.mode});
    g.norm = norm;
    g.dweight = dw.tensor;
    g.dweight_mode = dw.mode;
    ops_.rotary_grad(pass.stream, g);
  };
  turn_back({dqkv, 0, s.heads, s.head_dim}, a.raw_q(s), p.q_norm, a.q_inv_rms);
  turn_back({dqkv, s.q_width(), s.kv_heads, s.head_dim}, a.raw_k(s), p.k_norm, a.k_inv_rms);
}

void Decoder::layer_backward(const Pass& pass, std::int64_t layer, GradientSink& gradients, const Activations& kept,
                             const Carry& carry, Tensor dresidual) const {
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);
  const std::int64_t n = pass.tokens(), before = attention_tile(kept, n), behind = mlp_tile(kept, n);
  pass.weights.require_weights(layer_unit(layer), pass.stream);
  Activations a = kept;
  Tensor remade_delta;
  if (keep_of(layer) >= Keep::attention) {
    // In tiles the stream after attention is made for one at a time, so its place is free.
    complete_attention(pass, a, before < n, behind < n ? carry.middle : Tensor());
    if (behind == n) {
      a.middle = arena.acquire("after attention", settings_.formats.activations, {n, spec_.hidden});
      if (spec_.input_norms) a.inv_rms2 = arena.acquire("inverse rms", DType::f32, {n});
    }
    remade_delta = carry.scratch;
    attention_forward(pass, layer, a, carry, remade_delta, nullptr, before, static_cast<bool>(kept.attention));
  }
  const auto acquire_dnormed = [&](std::int64_t rows) {
    return arena.acquire("gradient of a norm", settings_.formats.activations, {rows, spec_.hidden});
  };
  Tensor dnormed;
  gradients.require_gradients(layer_unit(layer), pass.stream);
  if (behind < n) {
    mlp_backward_in_tiles(pass, layer, gradients, a, remade_delta, dresidual, behind);
    dnormed = acquire_dnormed(before);
  } else {
    dnormed = acquire_dnormed(n);
    mlp_backward(pass, layer, gradients, a, remade_delta, dnormed, dresidual);
  }
  // Nothing needs what attention added any more.
  attention_backward(pass, layer, gradients, a, dnormed, dresidual, before, before < n ? carry.scratch : Tensor());
  pass.weights.release_weights(layer_unit(layer), pass.stream);
  gradients.gradients_ready(layer_unit(layer), pass.stream);
}

void Decoder::head_backward(const Pass& pass, GradientSink& gradients, const Carry& carry, Tensor losses,
                            Tensor dresidual) const {
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);
  Stream& stream = pass.stream;
  WeightSource& weights = pass.weights;
  const std::int64_t n = pass.tokens();
  const DType t = settings_.formats.activations;
  // The last layer may have kept what is carried.
  const Tensor x =
      keep_of(spec_.layers - 1) >= Keep::input ? carry.x : arena.acquire("final input", t, {n, spec_.hidden});
  Tensor inv_rms = arena.acquire("inverse rms", DType::f32, {n});
  Tensor normed = arena.acquire("final normed", t, {n, spec_.hidden});
  const Tensor dnormed = dresidual;  // first the gradient of the norm's output, then of its input
  require_head(weights, stream);
  final_norm(pass, normed, x, inv_rms, carry.x, carry.delta);
  Ops::LinearCrossEntropy loss;
  loss.hidden = normed;
  loss.weight = weights.weight(index_.lm_head);
  loss.targets = pass.batch.targets;
  loss.losses = losses;
  loss.label_smoothing = settings_.label_smoothing;
  loss.rows = pass.batch.loss_rows;
  if (loss.rows) loss.gathered = carry.scratch;  // the last block's output, which the norm has read by now
  loss.dhidden = dnormed;
  gradients.require_gradients(head_unit(spec_), stream);
  if (spec_.tied_embeddings) gradients.require_gradients(0, stream);
  const auto project = [&](GradientSink& sink) {
    const auto dhead = sink.gradient(index_.lm_head);
    loss.dweight = dhead.tensor;
    loss.dweight_mode = dhead.mode;
    loss.grad_scale = pass.grad_scale;
    loss.workspace = arena.acquire("logits chunk", ops_.memory().logits_dtype(t), {loss_rows(n), spec_.vocab});
    ops_.linear_cross_entropy(stream, loss);
  };
  if (settings_.tile_rows > 0 && n > settings_.tile_rows) {
    // A bf16 sum over so many chunks of logits would lose what each adds.
    TiledGradients sum(gradients, arena, {{index_.lm_head, 1}});
    project(sum);
    sum.finish(ops_, stream);
  } else {
    project(gradients);
  }
  add_router_loss(pass, losses);
  if (const auto scale = static_cast<float>(spec_.logits_scale); scale != 1)
    ops_.add_scaled(stream, dnormed, Tensor(), dnormed, scale);
  const auto dnorm = vector_gradient(gradients, arena, {index_.final_norm, 1}, weights.weight(index_.final_norm));
  ops_.rms_norm_grad(stream, {.dx = dresidual,
                              .dweight = dnorm.tensor,
                              .dout = dnormed,
                              .x = x,
                              .inv_rms = inv_rms,
                              .weight = weights.weight(index_.final_norm),
                              .dweight_mode = dnorm.mode,
                              .weight_offset = spec_.norm_offset});
  release_head(weights, stream);
  gradients.gradients_ready(head_unit(spec_), stream);
}

}  // namespace so
