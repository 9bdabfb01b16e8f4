#include "model/decoder.h"

#include <algorithm>

#include "base/error.h"
#include "model/decoder_activations.h"
#include "model/rope.h"

namespace so {

Decoder::Decoder(const DecoderSpec& spec, const ParameterLayout& layout, Ops& ops, Tensor rope_table,
                 DecoderSettings settings, ActivationStore* store, SequenceExchange* exchange)
    : spec_(spec),
      index_(make_parameter_index(spec, layout)),
      first_trained_(layout.first_trained_unit()),
      ops_(ops),
      rope_(rope_table),
      settings_(settings),
      keep_(kept_by_layer(settings.keep, spec.layers, first_trained_)),
      store_(store),
      exchange_(exchange) {
  check_formats(settings.formats);
  SO_CHECK(settings.loss_chunk_rows > 0, "loss chunk of {} rows", settings.loss_chunk_rows);
  int items = 0;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer)
    items_.push_back(keep_of(layer) == Keep::host ? items++ : -1);
  SO_CHECK(rope_.rank() == 3 && rope_.dim(2) * 2 == spec.rope.rotary_dim && rope_.dim(0) % rope_tables(spec) == 0,
           "rope table");
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    const LayerSpec l = spec.layer(layer);
    SO_CHECK(l.rotation != LayerRotation::none || !spec.qk_norm, "a norm of heads goes with their rotation");
    SO_CHECK(l.rotation != LayerRotation::local || spec.local_rope, "a local rotation without its table");
    SO_CHECK(!l.experts || !spec.output_norms, "norms of what experts add");
  }
}

std::int64_t Decoder::loss_rows(std::int64_t tokens) const { return std::min(tokens, settings_.loss_chunk_rows); }

AttentionSpans Decoder::spans(const Pass& pass, std::int64_t layer) const {
  AttentionSpans spans = pass.batch.spans;
  spans.scale = spec_.score_scale();
  spans.window = spec_.layer(layer).window;
  spans.sinks = pass.weight(index(layer).sinks);
  spans.any_order = settings_.any_order;
  return spans;
}

AttentionSize Decoder::attention_size(const AttentionSpans& spans, std::int64_t q_rows, std::int64_t k_rows) const {
  return {q_rows,         k_rows,
          spec_.heads,    spec_.kv_heads,
          spec_.head_dim, spans.documents,
          spans.max_q,    settings_.formats.activations,
          spans.window,   static_cast<bool>(spans.sinks),
          spans.any_order};
}

Tensor Decoder::acquire_bytes(Arena& arena, std::string_view name, std::size_t bytes) const {
  return bytes == 0 ? Tensor() : arena.acquire(name, DType::u8, {static_cast<std::int64_t>(bytes)});
}

void Decoder::require_head(WeightSource& weights, Stream& stream) const {
  weights.require_weights(head_unit(spec_), stream);
  if (spec_.tied_embeddings) weights.require_weights(0, stream);
}

void Decoder::release_head(WeightSource& weights, Stream& stream) const {
  weights.release_weights(head_unit(spec_), stream);
  if (spec_.tied_embeddings) weights.release_weights(0, stream);
}

void Decoder::embed(const Pass& pass, Tensor x) const {
  pass.weights.require_rows(0, pass.batch.ids_on_host, pass.stream);
  ops_.embedding(pass.stream, x, pass.weights.weight(index_.embedding), pass.batch.ids);
  pass.weights.release_weights(0, pass.stream);
  if (const float scale = embedding_scale(); scale != 1) ops_.add_scaled(pass.stream, x, Tensor(), x, scale);
  pass.show(0, "the embedding", x);
}

float Decoder::embedding_scale() const {
  const auto scale = static_cast<float>(spec_.embedding_scale);
  const bool rounded = spec_.round_embedding_scale && settings_.formats.activations == DType::bf16;
  return rounded ? static_cast<float>(bf16(scale)) : scale;
}

Tensor Decoder::rope(std::int64_t layer) const {
  const LayerRotation rotation = spec_.layer(layer).rotation;
  if (rotation == LayerRotation::none) return {};
  const std::int64_t positions = rope_.dim(0) / rope_tables(spec_);
  return rope_.rows(rotation == LayerRotation::local ? positions : 0, positions);
}

void Decoder::rotate(const Pass& pass, std::int64_t layer, const Activations& a) const {
  const ParameterIndex::Layer& p = index(layer);
  const Tensor table = rope(layer);
  const auto turn = [&](Heads out, Heads in, Joined weight, Tensor inv_rms) {
    HeadNorm norm{pass.weight(weight), spec_.rms_epsilon, inv_rms, spec_.norm_offset};
    if (spec_.projection_norm) {
      ops_.projection_norm(pass.stream, out, in, norm);
      in = out;
      norm = {};
    }
    if (table) ops_.rotary(pass.stream, out, in, pass.batch.positions, table, norm, spec_.rope.pairs);
  };
  turn(a.q(spec_), a.raw_q(spec_), p.q_norm, a.q_inv_rms);
  turn(a.k(spec_), a.raw_k(spec_), p.k_norm, a.k_inv_rms);
}

void Decoder::block_input(const Pass& pass, Joined norm, Tensor normed, Tensor inv_rms, Tensor sum, Tensor x,
                          Tensor delta) const {
  const auto scale = static_cast<float>(spec_.residual_scale);
  if (!norm) {
    if (delta) ops_.add_scaled(pass.stream, sum, x, delta, scale);
    return;
  }
  const NormTerms terms{spec_.rms_epsilon, spec_.norm_offset, scale};
  if (delta)
    ops_.add_rms_norm(pass.stream, normed, sum, inv_rms, x, delta, pass.weight(norm), terms);
  else
    ops_.add_rms_norm(pass.stream, normed, Tensor(), inv_rms, sum, Tensor(), pass.weight(norm), terms);
}

void Decoder::output_norm(const Pass& pass, Joined norm, Tensor out, Tensor raw, Tensor inv_rms) const {
  if (norm)
    ops_.add_rms_norm(pass.stream, out, Tensor(), inv_rms, raw, Tensor(), pass.weight(norm),
                      {spec_.rms_epsilon, spec_.norm_offset});
}

void Decoder::final_norm(const Pass& pass, Tensor normed, Tensor sum, Tensor inv_rms, Tensor x, Tensor delta) const {
  ops_.add_rms_norm(pass.stream, normed, sum, inv_rms, x, delta, pass.weights.weight(index_.final_norm),
                    {spec_.rms_epsilon, spec_.norm_offset, static_cast<float>(spec_.residual_scale)});
  if (const auto scale = static_cast<float>(spec_.logits_scale); scale != 1)
    ops_.add_scaled(pass.stream, normed, Tensor(), normed, scale);
}

void Decoder::attention_forward(const Pass& pass, std::int64_t layer, const Activations& a, const Carry& carry,
                                Tensor out, KvCache* cache, std::int64_t tile, bool attended) const {
  const ParameterIndex::Layer& p = index(layer);
  const std::int64_t n = pass.tokens();
  Stream& stream = pass.stream;
  const auto rows = [](Tensor t, std::int64_t first, std::int64_t count) { return t ? t.rows(first, count) : t; };
  // The residual stream is x + residual_scale * delta; the sum is made where it is first read, by the norm.
  for_each_tile(n, tile, [&](std::int64_t first, std::int64_t count) {
    Arena::Scope scope(pass.arena);
    Activations part = tile < n ? a.rows(first, count) : a;
    complete_attention_input(pass.arena, count, part);
    block_input(pass, p.input_norm, part.normed1, part.inv_rms1, part.x, rows(carry.x, first, count),
                rows(carry.delta, first, count));
    ops_.linear(stream, part.qkv, part.normed1, pass.weight(p.qkv), pass.weight(p.qkv_bias), Accumulate::overwrite);
  });
  rotate(pass, layer, a);
  if (!attended) attend(pass, layer, a, cache);
  for_each_tile(n, tile, [&](std::int64_t first, std::int64_t count) {
    const Tensor to = rows(out, first, count), raw = rows(a.attention_out, first, count);
    ops_.linear(stream, raw ? raw : to, rows(a.attention, first, count), pass.weight(p.o), pass.weight(p.o_bias),
                Accumulate::overwrite);
    output_norm(pass, p.attention_output_norm, to, raw, rows(a.attention_out_inv_rms, first, count));
  });
}

// From the rotated queries and keys to a.attention.
void Decoder::attend(const Pass& pass, std::int64_t layer, const Activations& a, KvCache* cache) const {
  if (pass.batch.is_slice()) return attend_split(pass, layer, a);
  const DecoderSpec& s = spec_;
  const std::int64_t n = pass.tokens();
  Stream& stream = pass.stream;
  Heads k = a.k(s), v = a.v(s);
  std::int64_t k_rows = n;
  if (cache) {
    k_rows = cache->used + n;
    const Tensor rows = cache->layers[static_cast<std::size_t>(layer)];
    const Tensor added = rows.rows(cache->used, n), all = rows.rows(0, k_rows);
    ops_.copy_heads(stream, {added, 0, s.kv_heads, s.head_dim}, k);
    ops_.copy_heads(stream, {added, s.kv_width(), s.kv_heads, s.head_dim}, v);
    k = {all, 0, s.kv_heads, s.head_dim};
    v = {all, s.kv_width(), s.kv_heads, s.head_dim};
  }
  Arena::Scope scope(pass.arena);
  const AttentionSpans spans = this->spans(pass, layer);
  const Tensor scratch =
      acquire_bytes(pass.arena, "attention scratch", ops_.memory().attention(attention_size(spans, n, k_rows)));
  ops_.attention(
      stream,
      {.out = a.attention_heads(s), .lse = a.lse, .q = a.q(s), .k = k, .v = v, .spans = spans, .scratch = scratch});
}

void Decoder::mlp_forward(const Pass& pass, std::int64_t layer, const Activations& a, Tensor out) const {
  const ParameterIndex::Layer& p = index(layer);
  ops_.linear(pass.stream, a.gate_up, a.normed2, pass.weight(p.gate_up), pass.weight(p.gate_up_bias),
              Accumulate::overwrite);
  ops_.swiglu(pass.stream, a.activated, a.gate_up, spec_.gate);
  ops_.linear(pass.stream, a.mlp_out ? a.mlp_out : out, a.activated, pass.weight(p.down), pass.weight(p.down_bias),
              Accumulate::overwrite);
  output_norm(pass, p.mlp_output_norm, out, a.mlp_out, a.mlp_out_inv_rms);
}

void Decoder::layer_forward(const Pass& pass, std::int64_t layer, const Activations& kept, Carry& carry,
                            KvCache* cache) const {
  Stream& stream = pass.stream;
  const std::int64_t n = pass.tokens(), before = attention_tile(kept, n), behind = mlp_tile(kept, n);
  Activations a = kept;
  if (!a.middle) a.middle = carry.middle;
  pass.weights.require_weights(layer_unit(layer), stream);
  {
    Arena::Scope block(pass.arena);
    Activations own = a;
    complete_attention(pass, own, before < n);
    // `delta` may still be the previous layer's, which the first norm has read by the time it is overwritten.
    attention_forward(pass, layer, own, carry, carry.scratch, cache, before);
    pass.show(layer_unit(layer), "its input", a.x);
    pass.show(layer_unit(layer), "the output of its attention", carry.scratch);
  }
  for_each_tile(n, behind, [&](std::int64_t first, std::int64_t count) {
    Arena::Scope block(pass.arena);
    Activations part = behind < n ? a.rows(first, count) : a;
    const Tensor out = carry.scratch.rows(first, count);
    complete_mlp(pass.arena, layer, count, part);
    block_input(pass, index(layer).mlp_norm, part.normed2, part.inv_rms2, part.middle, part.x, out);
    if (spec_.layer(layer).experts)
      experts_forward(pass, layer, part, out, first == 0);
    else
      mlp_forward(pass, layer, part, out);
  });
  pass.show(layer_unit(layer), "its sum after attention", a.middle);
  pass.show(layer_unit(layer), spec_.layer(layer).experts ? "the output of its experts" : "the output of its MLP",
            carry.scratch);
  pass.weights.release_weights(layer_unit(layer), stream);
  carry.x = a.middle;
  carry.delta = carry.scratch;
}

void Decoder::run_layers(const Pass& pass, Carry& carry, KvCache* cache) const {
  // Nothing is kept. A layer's first norm reads what the layer before left in `middle` and writes `x`, so one of each
  // is enough.
  Activations a = acquire_kept(pass, 0, Keep::input);
  carry.middle = pass.arena.acquire("after attention", settings_.formats.activations, {pass.tokens(), spec_.hidden});
  embed(pass, a.x);
  carry.x = a.x;
  for (std::int64_t layer = 0; layer < spec_.layers; ++layer) layer_forward(pass, layer, a, carry, cache);
}

void Decoder::forward_loss(Stream& stream, const DeviceBatch& batch, WeightSource& weights, Arena& arena, Tensor losses,
                           const ForwardObserver* observer) const {
  Arena::Scope scope(arena);
  const std::int64_t n = batch.tokens();
  Carry carry(arena, settings_.formats.activations, n, spec_.hidden);
  Tensor normed = arena.acquire("final normed", settings_.formats.activations, {n, spec_.hidden});
  Tensor inv_rms = arena.acquire("inverse rms", DType::f32, {n});
  const Pass pass{stream, batch, weights, arena, acquire_load(arena), 0, observer};
  {
    Arena::Scope layers(arena);
    run_layers(pass, carry, nullptr);
    require_head(weights, stream);
    final_norm(pass, normed, carry.x, inv_rms, carry.x, carry.delta);
  }
  pass.show(head_unit(spec_), "the final norm", normed);
  Ops::LinearCrossEntropy loss;
  loss.hidden = normed;
  loss.weight = weights.weight(index_.lm_head);
  loss.targets = batch.targets;
  loss.losses = losses;
  loss.label_smoothing = settings_.label_smoothing;
  loss.rows = batch.loss_rows;
  if (loss.rows) loss.gathered = carry.scratch;  // the last block's output, which the norm has read by now
  loss.workspace = arena.acquire("logits chunk", ops_.memory().logits_dtype(settings_.formats.activations),
                                 {loss_rows(n), spec_.vocab});
  ops_.linear_cross_entropy(stream, loss);
  add_router_loss(pass, losses);
  pass.show(head_unit(spec_), "the loss of the logits", losses);
  release_head(weights, stream);
}

void Decoder::forward_logits(Stream& stream, const DeviceBatch& batch, WeightSource& weights, Arena& arena,
                             Tensor logits, KvCache* cache) const {
  Arena::Scope scope(arena);
  const std::int64_t n = batch.tokens(), rows = logits.dim(0);
  SO_CHECK(rows >= 1 && rows <= n, "{} rows of logits of {} tokens", rows, n);
  Carry carry(arena, settings_.formats.activations, n, spec_.hidden);
  const Pass pass{stream, batch, weights, arena, {}};
  run_layers(pass, carry, cache);
  Tensor normed = arena.acquire("final normed", settings_.formats.activations, {rows, spec_.hidden});
  Tensor inv_rms = arena.acquire("inverse rms", DType::f32, {rows});
  require_head(weights, stream);
  const Tensor x = carry.x.rows(n - rows, rows);
  final_norm(pass, normed, x, inv_rms, x, carry.delta.rows(n - rows, rows));
  ops_.linear(stream, logits, normed, weights.weight(index_.lm_head), Tensor(), Accumulate::overwrite);
  release_head(weights, stream);
  if (cache) cache->used += n;
}

}  // namespace so
