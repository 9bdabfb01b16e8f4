#include "model/decoder/slice_state_space.h"

#include "model/decoder/gradients.h"

namespace so {

SliceStateSpace::SliceStateSpace(const DecoderContext& context, std::int64_t layer)
    : context_(context),
      space_(context.spec.state_space),
      ops_(context.ops),
      p_(context.parameters(layer)),
      messages_(context) {}

std::int64_t SliceStateSpace::own_width() const {
  return heads() * space_.head_dim + 2 * groups() * space_.state + heads();
}

template <class Copy>
void SliceStateSpace::for_each_piece(int rank, const Copy& copy) const {
  const std::int64_t g = groups(), h = heads(), values = space_.width(), of_groups = space_.groups * space_.state;
  std::int64_t own = 0;
  const auto piece = [&](std::int64_t column, std::int64_t count, std::int64_t size) {
    copy(column + rank * count * size, own, count, size);
    own += count * size;
  };
  // Behind the gate of the output.
  piece(values, h, space_.head_dim);
  piece(2 * values, g, space_.state);
  piece(2 * values + of_groups, g, space_.state);
  piece(2 * values + 2 * of_groups, 1, h);
}

std::array<OwnRows, 3> SliceStateSpace::convolution_rows() const {
  const std::int64_t values = heads() * space_.head_dim, group = groups() * space_.state, rank = messages_.rank();
  const std::int64_t all_values = space_.width(), all_groups = space_.groups * space_.state;
  return {{{rank * values, 0, values},
           {all_values + rank * group, values, group},
           {all_values + all_groups + rank * group, values + group, group}}};
}

StateSpacePart SliceStateSpace::own_part(const DecoderPass& pass, const LayerActivations& a) const {
  const std::int64_t first = messages_.rank() * heads();
  const auto rows = convolution_rows();
  StateSpacePart part{
      .groups = groups(),
      .heads = heads(),
      .projected = a.own_qkv,
      .step_column = own_width() - heads(),
      .convolution = own_weight(context_, pass, "convolution of own heads", pass.weight(p_.convolution), rows),
      .a_log = pass.weight(p_.a_log).rows(first, heads()),
      .dt_bias = pass.weight(p_.dt_bias).rows(first, heads()),
      .skip = pass.weight(p_.skip).rows(first, heads()),
      .convolved = a.convolved,
      .decay = a.decay,
      .step = a.rate};
  if (p_.convolution_bias)
    part.convolution_bias =
        own_weight(context_, pass, "convolution of own heads", pass.weight(p_.convolution_bias), rows);
  return part;
}

void SliceStateSpace::complete(const DecoderPass& pass, LayerActivations& a) const {
  acquire_if_empty(pass.arena, a.own_qkv, "state space projections of own heads", context_.activations(),
                   {pass.batch.all_tokens(), own_width()});
  acquire_state_space_inputs(context_, pass.arena, pass.batch.all_tokens(), groups(), heads(), a);
}

void SliceStateSpace::projections_to_heads(const DecoderPass& pass, const LayerActivations& a) const {
  messages_.to_heads(pass, a.own_qkv, [&](Tensor part, int rank) {
    for_each_piece(rank, [&](std::int64_t column, std::int64_t own, std::int64_t count, std::int64_t size) {
      ops_.copy_heads(pass.stream, {part, own, count, size}, {a.qkv, column, count, size});
    });
  });
}

void SliceStateSpace::forward(const DecoderPass& pass, LayerActivations a) const {
  const std::int64_t n = pass.tokens(), h = heads(), d = space_.head_dim;
  Arena::Scope scope(pass.arena);
  complete(pass, a);
  projections_to_heads(pass, a);
  StateSpacePart part = own_part(pass, a);
  part.mixed = pass.arena.acquire("state space of own heads", context_.activations(), {pass.batch.all_tokens(), h * d});
  make_state_space_inputs(context_, pass, part, nullptr);
  apply_state_space(context_, pass, part, nullptr);
  const int ranks = messages_.ranks();
  const Tensor packed = pass.arena.acquire("slice of ranks", context_.activations(), {ranks * n, h * d});
  messages_.to_slices(pass, packed, part.mixed);
  for (int r = 0; r < ranks; ++r)
    ops_.copy_heads(pass.stream, {a.mixed, r * h * d, h, d}, {packed.rows(r * n, n), 0, h, d});
}

void SliceStateSpace::backward(const DecoderPass& pass, LayerActivations a, Tensor dmixed, Tensor dprojected,
                               const StateSpaceTargets& targets) const {
  const std::int64_t n = pass.tokens(), all = pass.batch.all_tokens(), h = heads(), d = space_.head_dim;
  const DType t = context_.activations();
  const int ranks = messages_.ranks(), rank = messages_.rank();
  Stream& stream = pass.stream;
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);
  // If the state space was run again just now, what it read is there.
  const bool there = static_cast<bool>(a.own_qkv);
  complete(pass, a);
  if (!there) projections_to_heads(pass, a);
  const StateSpacePart part = own_part(pass, a);
  if (!there) make_state_space_inputs(context_, pass, part, nullptr);
  const Tensor dmixed_own = arena.acquire("gradient of the state space of own heads", t, {all, h * d}),
               dprojected_own =
                   arena.acquire("gradient of state space projections of own heads", t, {all, own_width()}),
               dweight = acquire_own_gradient(pass, "gradient of own convolution", part.convolution);
  Tensor dbias;
  if (part.convolution_bias) dbias = acquire_own_gradient(pass, "gradient of own convolution", part.convolution_bias);
  messages_.to_heads(pass, dmixed_own, [&](Tensor to, int r) {
    ops_.copy_heads(stream, {to, 0, h, d}, {dmixed, r * h * d, h, d});
  });
  state_space_backward(context_, pass, part, dmixed_own, dprojected_own,
                       {.convolution = {dweight, Accumulate::overwrite},
                        .convolution_bias = {dbias, Accumulate::overwrite},
                        .a_log = own_gradient(stream, targets.a_log, rank * h, h),
                        .dt_bias = own_gradient(stream, targets.dt_bias, rank * h, h),
                        .skip = own_gradient(stream, targets.skip, rank * h, h)});
  const auto rows = convolution_rows();
  write_own_gradient(ops_, stream, targets.convolution, dweight, rows);
  if (dbias) write_own_gradient(ops_, stream, targets.convolution_bias, dbias, rows);
  const Tensor packed = arena.acquire("slice of ranks", t, {ranks * n, own_width()});
  messages_.to_slices(pass, packed, dprojected_own);
  for (int r = 0; r < ranks; ++r)
    for_each_piece(r, [&](std::int64_t column, std::int64_t own, std::int64_t count, std::int64_t size) {
      ops_.copy_heads(stream, {dprojected, column, count, size}, {packed.rows(r * n, n), own, count, size});
    });
}

}  // namespace so
