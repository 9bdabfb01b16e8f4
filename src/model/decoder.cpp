#include "model/decoder.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/decoder_activations.h"

namespace so {

Decoder::Decoder(const DecoderSpec& spec, const ParameterLayout& layout, Ops& ops, Tensor rope_table,
                 DecoderSettings settings)
    : spec_(spec), index_(make_parameter_index(spec, layout)), ops_(ops), rope_(rope_table), settings_(settings) {
  SO_CHECK(settings.compute == DType::f32 || settings.compute == DType::bf16, "compute dtype {}",
           name_of(settings.compute));
  SO_CHECK(settings.loss_chunk_rows > 0, "loss chunk of {} rows", settings.loss_chunk_rows);
  SO_CHECK(rope_.rank() == 3 && rope_.dim(2) * 2 == spec.rope.rotary_dim, "rope table");
}

std::int64_t Decoder::loss_rows(std::int64_t tokens) const { return std::min(tokens, settings_.loss_chunk_rows); }

AttentionSpans Decoder::spans(const DeviceBatch& batch) const {
  AttentionSpans spans = batch.spans;
  spans.scale = 1.0f / std::sqrt(static_cast<float>(spec_.head_dim));
  return spans;
}

Decoder::Activations Decoder::acquire_activations(Arena& arena, std::int64_t n) const {
  const DType t = settings_.compute;
  const DecoderSpec& s = spec_;
  Activations a;
  a.x = arena.acquire("layer input", t, {n, s.hidden});
  a.inv_rms1 = arena.acquire("inverse rms", DType::f32, {n});
  a.normed1 = arena.acquire("normed input", t, {n, s.hidden});
  a.qkv = arena.acquire("qkv", t, {n, s.qkv_width()});
  if (s.qk_norm) {
    a.qk = arena.acquire("rotated qk", t, {n, s.q_width() + s.kv_width()});
    a.q_inv_rms = arena.acquire("inverse rms of q", DType::f32, {n, s.heads});
    a.k_inv_rms = arena.acquire("inverse rms of k", DType::f32, {n, s.kv_heads});
  } else {
    a.qk = a.qkv;  // rotated in place
  }
  a.attention = arena.acquire("attention", t, {n, s.q_width()});
  a.lse = arena.acquire("log-sum-exp", DType::f32, {s.heads, n});
  a.middle = arena.acquire("after attention", t, {n, s.hidden});
  a.inv_rms2 = arena.acquire("inverse rms", DType::f32, {n});
  a.normed2 = arena.acquire("normed middle", t, {n, s.hidden});
  a.gate_up = arena.acquire("gate and up", t, {n, 2 * s.intermediate});
  a.activated = arena.acquire("activated", t, {n, s.intermediate});
  return a;
}

void Decoder::require_head(WeightSource& weights, Stream& stream) const {
  weights.require_weights(head_unit(spec_), stream);
  if (spec_.tied_embeddings) weights.require_weights(0, stream);
}

void Decoder::release_head(WeightSource& weights, Stream& stream) const {
  weights.release_weights(head_unit(spec_), stream);
  if (spec_.tied_embeddings) weights.release_weights(0, stream);
}

void Decoder::embed(Stream& stream, const DeviceBatch& batch, WeightSource& weights, Tensor x) const {
  weights.require_weights(0, stream);
  ops_.embedding(stream, x, weights.weight(index_.embedding), batch.ids);
  weights.release_weights(0, stream);
}

void Decoder::layer_forward(Stream& stream, std::int64_t layer, const DeviceBatch& batch, WeightSource& weights,
                            Activations& a, Carry& carry, KvCache* cache, bool recomputing) const {
  const ParameterIndex::Layer& p = index_.layers[static_cast<std::size_t>(layer)];
  const DecoderSpec& s = spec_;
  const auto weight = [&](int first, int count = 1) { return first < 0 ? Tensor() : weights.weight(first, count); };
  weights.require_weights(layer_unit(layer), stream);

  // The residual stream is x + delta; the sum is made where it is first read, by the norm.
  if (carry.delta)
    ops_.add_rms_norm(stream, a.normed1, a.x, a.inv_rms1, carry.x, carry.delta, weight(p.input_norm), s.rms_epsilon);
  else
    ops_.add_rms_norm(stream, a.normed1, Tensor(), a.inv_rms1, a.x, Tensor(), weight(p.input_norm), s.rms_epsilon);

  ops_.linear(stream, a.qkv, a.normed1, weight(p.qkv, 3), weight(p.qkv_bias, 3), Accumulate::overwrite);
  Heads q = a.q(s), k = a.k(s), v = a.v(s);
  ops_.rotary(stream, q, a.raw_q(s), batch.positions, rope_, {weight(p.q_norm), s.rms_epsilon, a.q_inv_rms});
  ops_.rotary(stream, k, a.raw_k(s), batch.positions, rope_, {weight(p.k_norm), s.rms_epsilon, a.k_inv_rms});
  AttentionSpans spans = this->spans(batch);
  if (cache) {
    const Tensor rows = cache->layers[static_cast<std::size_t>(layer)];
    const Tensor added = rows.rows(cache->used, batch.tokens()), all = rows.rows(0, cache->used + batch.tokens());
    ops_.copy_heads(stream, {added, 0, s.kv_heads, s.head_dim}, k);
    ops_.copy_heads(stream, {added, s.kv_width(), s.kv_heads, s.head_dim}, v);
    k = {all, 0, s.kv_heads, s.head_dim};
    v = {all, s.kv_width(), s.kv_heads, s.head_dim};
  }
  ops_.attention(stream, a.attention_heads(s), a.lse, q, k, v, spans, Tensor());

  // `delta` may still be the previous layer's, which the first norm has read by now.
  ops_.linear(stream, carry.scratch, a.attention, weight(p.o), weight(p.o_bias), Accumulate::overwrite);
  ops_.add_rms_norm(stream, a.normed2, a.middle, a.inv_rms2, a.x, carry.scratch, weight(p.post_attention_norm),
                    s.rms_epsilon);
  ops_.linear(stream, a.gate_up, a.normed2, weight(p.gate_up, 2), weight(p.gate_up_bias, 2), Accumulate::overwrite);
  ops_.swiglu(stream, a.activated, a.gate_up);
  // Backward does not read the block's output, so running the layer again for its activations can end here.
  if (!recomputing)
    ops_.linear(stream, carry.scratch, a.activated, weight(p.down), weight(p.down_bias), Accumulate::overwrite);
  weights.release_weights(layer_unit(layer), stream);
  carry.x = a.middle;
  carry.delta = carry.scratch;
}

void Decoder::run_layers(Stream& stream, const DeviceBatch& batch, WeightSource& weights, Arena& arena, Carry& carry,
                         KvCache* cache) const {
  // Nothing is kept: every layer uses the same activations. Its own first norm reads what the layer before left in
  // `middle` and writes `x`, so one set is enough.
  Activations a = acquire_activations(arena, batch.tokens());
  embed(stream, batch, weights, a.x);
  carry.x = a.x;
  for (std::int64_t layer = 0; layer < spec_.layers; ++layer)
    layer_forward(stream, layer, batch, weights, a, carry, cache, false);
}

void Decoder::forward_loss(Stream& stream, const DeviceBatch& batch, WeightSource& weights, Arena& arena,
                           Tensor losses) const {
  Arena::Scope scope(arena);
  const std::int64_t n = batch.tokens();
  Carry carry(arena, settings_.compute, n, spec_.hidden);
  Tensor normed = arena.acquire("final normed", settings_.compute, {n, spec_.hidden});
  Tensor inv_rms = arena.acquire("inverse rms", DType::f32, {n});
  {
    Arena::Scope layers(arena);
    run_layers(stream, batch, weights, arena, carry, nullptr);
    require_head(weights, stream);
    ops_.add_rms_norm(stream, normed, carry.x, inv_rms, carry.x, carry.delta, weights.weight(index_.final_norm),
                      spec_.rms_epsilon);
  }
  Ops::LinearCrossEntropy loss;
  loss.hidden = normed;
  loss.weight = weights.weight(index_.lm_head);
  loss.targets = batch.targets;
  loss.losses = losses;
  loss.workspace = arena.acquire("logits chunk", DType::f32, {loss_rows(n), spec_.vocab});
  ops_.linear_cross_entropy(stream, loss);
  release_head(weights, stream);
}

void Decoder::forward_logits(Stream& stream, const DeviceBatch& batch, WeightSource& weights, Arena& arena,
                             Tensor logits, KvCache* cache) const {
  Arena::Scope scope(arena);
  const std::int64_t n = batch.tokens(), rows = logits.dim(0);
  SO_CHECK(rows >= 1 && rows <= n, "{} rows of logits of {} tokens", rows, n);
  Carry carry(arena, settings_.compute, n, spec_.hidden);
  run_layers(stream, batch, weights, arena, carry, cache);
  Tensor normed = arena.acquire("final normed", settings_.compute, {rows, spec_.hidden});
  Tensor inv_rms = arena.acquire("inverse rms", DType::f32, {rows});
  require_head(weights, stream);
  const Tensor x = carry.x.rows(n - rows, rows);
  ops_.add_rms_norm(stream, normed, x, inv_rms, x, carry.delta.rows(n - rows, rows), weights.weight(index_.final_norm),
                    spec_.rms_epsilon);
  ops_.linear(stream, logits, normed, weights.weight(index_.lm_head), Tensor(), Accumulate::overwrite);
  release_head(weights, stream);
  if (cache) cache->used += n;
}

}  // namespace so
