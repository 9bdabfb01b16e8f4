#include "model/decoder/slice_delta.h"

#include <array>

#include "model/decoder/gradients.h"
#include "model/decoder/slice_weights.h"

namespace so {
namespace {

std::array<OwnRows, 3> convolution_rows(const DeltaSpec& d, int rank, std::int64_t k_heads, std::int64_t v_heads) {
  const std::int64_t k = k_heads * d.k_dim, v = v_heads * d.v_dim;
  return {{{rank * k, 0, k}, {d.k_width() + rank * k, k, k}, {2 * d.k_width() + rank * v, 2 * k, v}}};
}

}  // namespace

SliceDelta::SliceDelta(const DecoderContext& context, std::int64_t layer)
    : context_(context),
      delta_(context.spec.delta),
      ops_(context.ops),
      p_(context.parameters(layer)),
      messages_(context) {}

std::int64_t SliceDelta::own_width() const {
  return 2 * k_heads() * delta_.k_dim + v_heads() * delta_.v_dim + 2 * v_heads();
}

template <class Copy>
void SliceDelta::for_each_piece(int rank, const Copy& copy) const {
  const DeltaSpec& d = delta_;
  const std::int64_t k = k_heads(), v = v_heads(), b = d.convolved_width() + d.v_width();
  std::int64_t own = 0;
  const auto piece = [&](std::int64_t column, std::int64_t heads, std::int64_t head_dim) {
    copy(column + rank * heads * head_dim, own, heads, head_dim);
    own += heads * head_dim;
  };
  piece(0, k, d.k_dim);
  piece(d.k_width(), k, d.k_dim);
  piece(2 * d.k_width(), v, d.v_dim);
  piece(b, 1, v);
  piece(b + d.v_heads, 1, v);
}

DeltaPart SliceDelta::own_part(const LayerActivations& a) const {
  return {.k_heads = k_heads(),
          .v_heads = v_heads(),
          .projected = a.own_qkv,
          .b_column = own_width() - 2 * v_heads(),
          .convolved = a.convolved,
          .decay = a.decay,
          .rate = a.rate};
}

void SliceDelta::add_weights(const DecoderPass& pass, DeltaPart& part) const {
  part.convolution = own_weight(context_, pass, "convolution of own heads", pass.weight(p_.convolution),
                                convolution_rows(delta_, messages_.rank(), k_heads(), v_heads()));
  const std::int64_t first = messages_.rank() * v_heads();
  part.a_log = pass.weight(p_.a_log).rows(first, v_heads());
  part.dt_bias = pass.weight(p_.dt_bias).rows(first, v_heads());
}

void SliceDelta::complete(const DecoderPass& pass, LayerActivations& a) const {
  acquire_if_empty(pass.arena, a.own_qkv, "delta projections of own heads", context_.activations(),
                   {pass.batch.all_tokens(), own_width()});
  acquire_rule_inputs(context_, pass.arena, pass.batch.all_tokens(), k_heads(), v_heads(), a);
}

void SliceDelta::projections_to_heads(const DecoderPass& pass, const LayerActivations& a) const {
  messages_.to_heads(pass, a.own_qkv, [&](Tensor part, int rank) {
    for_each_piece(rank, [&](std::int64_t column, std::int64_t own, std::int64_t heads, std::int64_t head_dim) {
      ops_.copy_heads(pass.stream, {part, own, heads, head_dim}, {a.qkv, column, heads, head_dim});
    });
  });
}

void SliceDelta::forward(const DecoderPass& pass, LayerActivations a) const {
  const std::int64_t n = pass.tokens(), h = v_heads(), d = delta_.v_dim;
  Arena::Scope scope(pass.arena);
  complete(pass, a);
  projections_to_heads(pass, a);
  DeltaPart part = own_part(a);
  add_weights(pass, part);
  part.mixed = pass.arena.acquire("delta rule of own heads", context_.activations(), {pass.batch.all_tokens(), h * d});
  make_rule_inputs(context_, pass, part, nullptr);
  apply_rule(context_, pass, part, nullptr);
  const int ranks = messages_.ranks();
  const Tensor packed = pass.arena.acquire("slice of ranks", context_.activations(), {ranks * n, h * d});
  messages_.to_slices(pass, packed, part.mixed);
  for (int r = 0; r < ranks; ++r)
    ops_.copy_heads(pass.stream, {a.mixed, r * h * d, h, d}, {packed.rows(r * n, n), 0, h, d});
}

void SliceDelta::backward(const DecoderPass& pass, LayerActivations a, Tensor dmixed, Tensor dprojected,
                          const DeltaTargets& targets) const {
  const std::int64_t n = pass.tokens(), all = pass.batch.all_tokens(), h = v_heads(), d = delta_.v_dim;
  const DType t = context_.activations();
  const int ranks = messages_.ranks(), rank = messages_.rank();
  Stream& stream = pass.stream;
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);
  // If the rule was applied again just now, what it read is there.
  const bool there = static_cast<bool>(a.own_qkv);
  complete(pass, a);
  if (!there) projections_to_heads(pass, a);
  DeltaPart part = own_part(a);
  add_weights(pass, part);
  if (!there) make_rule_inputs(context_, pass, part, nullptr);
  const Tensor dmixed_own = arena.acquire("gradient of the delta rule of own heads", t, {all, h * d}),
               dprojected_own = arena.acquire("gradient of delta projections of own heads", t, {all, own_width()}),
               dweight = acquire_own_gradient(pass, "gradient of own convolution", part.convolution);
  messages_.to_heads(pass, dmixed_own, [&](Tensor to, int r) {
    ops_.copy_heads(stream, {to, 0, h, d}, {dmixed, r * h * d, h, d});
  });
  rule_backward(context_, pass, part, dmixed_own, dprojected_own,
                {.convolution = {dweight, Accumulate::overwrite},
                 .a_log = own_gradient(stream, targets.a_log, rank * h, h),
                 .dt_bias = own_gradient(stream, targets.dt_bias, rank * h, h)});
  write_own_gradient(ops_, stream, targets.convolution, dweight, convolution_rows(delta_, rank, k_heads(), v_heads()));
  const Tensor packed = arena.acquire("slice of ranks", t, {ranks * n, own_width()});
  messages_.to_slices(pass, packed, dprojected_own);
  for (int r = 0; r < ranks; ++r)
    for_each_piece(r, [&](std::int64_t column, std::int64_t own, std::int64_t heads, std::int64_t head_dim) {
      ops_.copy_heads(stream, {dprojected, column, heads, head_dim}, {packed.rows(r * n, n), own, heads, head_dim});
    });
}

}  // namespace so
