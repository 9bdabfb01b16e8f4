#include "model/decoder/slice_attention.h"

#include "model/decoder/gradients.h"

namespace so {

SliceAttention::SliceAttention(const DecoderContext& context, std::int64_t layer)
    : context_(context),
      shape_(context.spec.shape(layer)),
      ops_(context.ops),
      sinks_(context.parameters(layer).sinks),
      setup_(context, layer),
      messages_(context) {}

RankHeads SliceAttention::own_heads() const { return rank_heads(shape_, messages_.rank(), messages_.ranks()); }

std::int64_t SliceAttention::own_width() const { return (own_heads().q + 2 * own_heads().kv) * shape_.head_dim; }

void SliceAttention::qkv_to_heads(const DecoderPass& pass, const LayerActivations& a, Tensor all) const {
  const std::int64_t d = shape_.head_dim;
  messages_.to_heads(pass, all, [&](Tensor part, int rank) {
    const RankHeads heads = rank_heads(shape_, rank, messages_.ranks());
    std::int64_t column = 0;
    const auto put = [&](Heads from, std::int64_t first, std::int64_t count) {
      ops_.copy_heads(pass.stream, {part, column, count, d}, {from.rows, from.offset + first * d, count, d});
      column += count * d;
    };
    put(a.q(shape_), heads.first_q, heads.q);
    put(a.k(shape_), heads.first_kv, heads.kv);
    put(a.v(shape_), heads.first_kv, heads.kv);
  });
}

void SliceAttention::attention_to_heads(const DecoderPass& pass, Tensor attention, Tensor all) const {
  messages_.to_heads(pass, all, [&](Tensor part, int rank) {
    const RankHeads heads = rank_heads(shape_, rank, messages_.ranks());
    ops_.copy_heads(pass.stream, {part, 0, heads.q, shape_.head_dim},
                    {attention, heads.first_q * shape_.head_dim, heads.q, shape_.head_dim});
  });
}

Ops::Attention SliceAttention::own_attention(const DecoderPass& pass, const LayerActivations& a) const {
  const RankHeads own = own_heads();
  const std::int64_t d = shape_.head_dim;
  AttentionSpans spans = setup_.spans(pass);
  if (spans.sinks) spans.sinks = spans.sinks.rows(own.first_q, own.q);
  return {.out = {a.own_attention, 0, own.q, d},
          .lse = a.lse,
          .q = {a.own_qkv, 0, own.q, d},
          .k = {a.own_qkv, own.q * d, own.kv, d},
          .v = {a.own_qkv, (own.q + own.kv) * d, own.kv, d},
          .spans = spans};
}

AttentionSize SliceAttention::own_size(const DecoderPass& pass, const AttentionSpans& spans) const {
  AttentionSize size = setup_.size(spans, pass.batch.all_tokens(), pass.batch.all_tokens());
  size.q_heads = own_heads().q;
  size.kv_heads = own_heads().kv;
  return size;
}

void SliceAttention::complete(const DecoderPass& pass, LayerActivations& a) const {
  const DType t = context_.activations();
  const std::int64_t all = pass.batch.all_tokens();
  if (!a.own_qkv) a.own_qkv = pass.arena.acquire("qkv of own heads", t, {all, own_width()});
  if (!a.own_attention)
    a.own_attention = pass.arena.acquire("attention of own heads", t, {all, own_heads().q * shape_.head_dim});
}

void SliceAttention::forward(const DecoderPass& pass, LayerActivations a) const {
  const std::int64_t n = pass.tokens(), d = shape_.head_dim;
  Arena::Scope scope(pass.arena);
  complete(pass, a);
  qkv_to_heads(pass, a, a.own_qkv);
  {
    Arena::Scope attention(pass.arena);
    Ops::Attention call = own_attention(pass, a);
    call.scratch = setup_.acquire_scratch(pass.arena, own_size(pass, call.spans));
    ops_.attention(pass.stream, call);
  }
  const int ranks = messages_.ranks();
  const Tensor packed = pass.arena.acquire("slice of ranks", context_.activations(), {ranks * n, own_heads().q * d});
  messages_.to_slices(pass, packed, a.own_attention);
  for (int r = 0; r < ranks; ++r) {
    const RankHeads heads = rank_heads(shape_, r, ranks);
    ops_.copy_heads(pass.stream, {a.mixed, heads.first_q * d, heads.q, d}, {packed.rows(r * n, n), 0, heads.q, d});
  }
}

void SliceAttention::backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations a, Tensor dattention,
                              const AttentionHeads& gradient) const {
  const RankHeads own = own_heads();
  const std::int64_t all = pass.batch.all_tokens(), d = shape_.head_dim;
  const DType t = context_.activations();
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);
  // If attention was computed again just now, what it read and made is there; else its slices are kept.
  const bool there = static_cast<bool>(a.own_qkv);
  complete(pass, a);
  if (!there) {
    qkv_to_heads(pass, a, a.own_qkv);
    attention_to_heads(pass, a.mixed, a.own_attention);
  }
  const Tensor dout = arena.acquire("gradient of attention of own heads", t, {all, own.q * d}),
               dqkv_own = arena.acquire("gradient of qkv of own heads", t, {all, own_width()});
  attention_to_heads(pass, dattention, dout);
  {
    Arena::Scope attention(arena);
    const Ops::Attention forward = own_attention(pass, a);
    const Tensor scratch = setup_.acquire_gradient_scratch(arena, own_size(pass, forward.spans));
    GradientSink::Target dsinks;
    if (sinks_) {
      dsinks = vector_gradient(gradients, arena, sinks_, pass.weight(sinks_));
      // The other heads' are the other ranks'.
      if (dsinks.mode == Accumulate::overwrite) pass.stream.zero(dsinks.tensor.data(), dsinks.tensor.bytes());
      dsinks.tensor = dsinks.tensor.rows(own.first_q, own.q);
    }
    ops_.attention_grad(pass.stream, {.dq = {dqkv_own, 0, own.q, d},
                                      .dk = {dqkv_own, own.q * d, own.kv, d},
                                      .dv = {dqkv_own, (own.q + own.kv) * d, own.kv, d},
                                      .dsinks = dsinks.tensor,
                                      .dsinks_mode = dsinks.mode,
                                      .dout = {dout, 0, own.q, d},
                                      .forward = forward,
                                      .scratch = scratch});
  }
  const Tensor packed = arena.acquire("slice of ranks", t, {messages_.ranks() * pass.tokens(), own_width()});
  messages_.to_slices(pass, packed, dqkv_own);
  unpack_gradient(pass, packed, gradient);
}

// A key and value head that several ranks have gets the sum of their gradients, in rank order.
void SliceAttention::unpack_gradient(const DecoderPass& pass, Tensor packed, const AttentionHeads& gradient) const {
  const std::int64_t n = pass.tokens(), d = shape_.head_dim;
  const int ranks = messages_.ranks();
  const auto move = [&](Heads to, std::int64_t first, Tensor from, std::int64_t column, std::int64_t heads) {
    ops_.copy_heads(pass.stream, {to.rows, to.offset + first * d, heads, d}, {from, column, heads, d});
  };
  Arena::Scope scope(pass.arena);
  const std::int64_t replicas = own_heads().replicas;
  Tensor sum, other;
  if (replicas > 1) {
    sum = pass.arena.acquire("gradient of shared heads", context_.activations(), {n, 2 * d});
    other = pass.arena.acquire("gradient of shared heads", context_.activations(), {n, 2 * d});
  }
  for (int r = 0; r < ranks; ++r) {
    const RankHeads heads = rank_heads(shape_, r, ranks);
    const Tensor part = packed.rows(r * n, n);
    move(gradient.q, heads.first_q, part, 0, heads.q);
    Tensor keys = part;
    std::int64_t column = heads.q * d;
    if (replicas > 1) {
      const bool first = r % replicas == 0;
      move({first ? sum : other, 0, 2, d}, 0, part, column, 2);
      if (!first) ops_.add_scaled(pass.stream, sum, sum, other, 1);
      if ((r + 1) % replicas != 0) continue;
      keys = sum;
      column = 0;
    }
    move(gradient.k, heads.first_kv, keys, column, heads.kv);
    move(gradient.v, heads.first_kv, keys, column + heads.kv * d, heads.kv);
  }
}

}  // namespace so
