#include "model/decoder_activations.h"

#include <algorithm>

#include "base/error.h"

namespace so {
namespace {

void have(Arena& arena, Tensor& tensor, const char* name, DType dtype, std::initializer_list<std::int64_t> shape) {
  if (!tensor) tensor = arena.acquire(name, dtype, shape);
}

// The size of what stands between a layer's two products; experts have a row for each pair of token and choice.
struct MlpSize {
  std::int64_t rows, width;
};
MlpSize mlp_size(const DecoderSpec& s, std::int64_t layer, std::int64_t n) {
  if (s.layer(layer).experts) return {n * s.experts.per_token, s.experts.intermediate};
  return {n, s.intermediate};
}

}  // namespace

std::string_view name_of(Keep keep) {
  switch (keep) {
    case Keep::all:
      return "all";
    case Keep::light:
      return "light";
    case Keep::no_gate_up:
      return "no_gate_up";
    case Keep::attention:
      return "attention";
    case Keep::input:
      return "input";
    case Keep::host:
      return "input on the host";
    case Keep::nothing:
      return "nothing";
  }
  SO_BUG("keep {}", static_cast<int>(keep));
}

int kept_on_host(const std::vector<Keep>& keep) {
  return static_cast<int>(std::count(keep.begin(), keep.end(), Keep::host));
}

std::vector<Keep> kept_by_layer(const std::vector<Keep>& keep, std::int64_t layers, int first_trained_unit) {
  SO_CHECK(keep.empty() || static_cast<std::int64_t>(keep.size()) == layers, "what {} of {} layers keep", keep.size(),
           layers);
  std::vector<Keep> kept = keep.empty() ? std::vector(static_cast<std::size_t>(layers), Keep::all) : keep;
  bool below = true;  // all layers so far, which have no backward pass
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    Keep& of_layer = kept[static_cast<std::size_t>(layer)];
    const bool has_backward = layer_unit(layer) >= first_trained_unit;
    if (!has_backward || (below && of_layer == Keep::nothing)) of_layer = Keep::input;
    below = !has_backward;
  }
  return kept;
}

std::vector<bool> remade_inputs(const std::vector<Keep>& kept) {
  std::size_t layers = kept.size();
  while (layers > 0 && kept[layers - 1] == Keep::nothing) --layers;  // which find theirs
  const auto begin = kept.begin(), end = begin + static_cast<std::ptrdiff_t>(layers);
  if (std::find(begin, end, Keep::nothing) == end) return {};
  std::vector<bool> units(kept.size() + 2, false);  // with the embedding and the head
  for (std::size_t layer = 0; layer < layers; ++layer)
    units[static_cast<std::size_t>(layer_unit(static_cast<std::int64_t>(layer)))] = kept[layer] == Keep::nothing;
  return units;
}

Decoder::Activations Decoder::acquire_kept(const Pass& pass, std::int64_t layer, Keep keep) const {
  Arena& arena = pass.arena;
  const std::int64_t n = pass.tokens();
  const DType t = settings_.formats.activations;
  const DecoderSpec& s = spec_;
  Activations a;
  if (keep == Keep::host || keep == Keep::nothing) return a;  // the input comes from elsewhere
  a.x = arena.acquire("layer input", t, {n, s.hidden});
  if (keep == Keep::input) return a;
  a.attention = arena.acquire("attention", t, {n, s.q_width()});
  a.lse = acquire_lse(pass);
  if (keep == Keep::attention) return a;
  if (s.input_norms) a.inv_rms1 = arena.acquire("inverse rms", DType::f32, {n});
  a.qkv = arena.acquire("qkv", t, {n, s.qkv_width()});
  complete_qk_norms(arena, n, a);
  if (!a.q_inv_rms) a.qk = a.qkv;  // rotated in place
  // The input of a norm after attention or MLP stays, or the product before it would be run again.
  if (s.output_norms) {
    complete_output(arena, n, a.attention_out, a.attention_out_inv_rms);
    complete_output(arena, n, a.mlp_out, a.mlp_out_inv_rms);
  }
  a.middle = arena.acquire("after attention", t, {n, s.hidden});
  if (s.input_norms) a.inv_rms2 = arena.acquire("inverse rms", DType::f32, {n});
  const bool experts = s.layer(layer).experts;
  if (experts) complete_routing(arena, n, a);
  if (keep == Keep::no_gate_up) return a;
  const auto [rows, width] = mlp_size(s, layer, n);
  a.gate_up = arena.acquire("gate and up", t, {rows, 2 * width});
  if (keep == Keep::light) return a;
  complete_attention(pass, a);
  if (experts)
    a.normed2 = arena.acquire("normed middle", t, {n, s.hidden});
  else
    complete_mlp(arena, layer, n, a);
  return a;
}

std::int64_t Decoder::attention_tile(const Activations& kept, std::int64_t n) const {
  return settings_.tile_rows > 0 && !kept.normed1 ? std::min(n, settings_.tile_rows) : n;
}

std::int64_t Decoder::mlp_tile(const Activations& kept, std::int64_t n) const {
  return settings_.tile_rows > 0 && !kept.gate_up && !kept.router_logits ? std::min(n, settings_.tile_rows) : n;
}

Tensor in_room(Arena& arena, const char* name, DType dtype, std::int64_t rows, std::int64_t columns, Tensor room) {
  if (room && static_cast<std::size_t>(rows * columns) * size_of(dtype) <= room.bytes())
    return {room.data(), dtype, {rows, columns}};
  return arena.acquire(name, dtype, {rows, columns});
}

Decoder::Activations Decoder::Activations::rows(std::int64_t first, std::int64_t count) const {
  Activations part = *this;
  part.lse = part.own_qkv = part.own_attention = part.gate_up = part.activated = part.router_logits = {};
  part.routing = {};
  for (Tensor* tensor : {&part.x, &part.inv_rms1, &part.normed1, &part.qkv, &part.qk, &part.q_inv_rms, &part.k_inv_rms,
                         &part.attention, &part.attention_out, &part.attention_out_inv_rms, &part.mlp_out,
                         &part.mlp_out_inv_rms, &part.middle, &part.inv_rms2, &part.normed2})
    if (*tensor) *tensor = tensor->rows(first, count);
  return part;
}

void Decoder::complete_attention_input(Arena& arena, std::int64_t n, Activations& a) const {
  if (spec_.input_norms)
    have(arena, a.normed1, "normed input", settings_.formats.activations, {n, spec_.hidden});
  else
    a.normed1 = a.x;
}

void Decoder::complete_attention(const Pass& pass, Activations& a, bool in_tiles, Tensor room) const {
  Arena& arena = pass.arena;
  const std::int64_t n = pass.tokens();
  const DType t = settings_.formats.activations;
  const DecoderSpec& s = spec_;
  if (s.input_norms) have(arena, a.inv_rms1, "inverse rms", DType::f32, {n});
  if (!in_tiles) complete_attention_input(arena, n, a);
  have(arena, a.qkv, "qkv", t, {n, s.qkv_width()});
  if (s.qk_norm || s.projection_norm)
    have(arena, a.qk, "rotated qk", t, {n, s.q_width() + s.kv_width()});
  else
    a.qk = a.qkv;
  complete_qk_norms(arena, n, a);
  if (s.output_norms) complete_output(arena, n, a.attention_out, a.attention_out_inv_rms);
  if (!a.attention) {
    a.attention = in_room(arena, "attention", t, n, s.q_width(), room);
    // Attention runs here, or again, in which case its gradient finds these.
    if (pass.batch.is_slice()) complete_own(pass, a);
  }
  if (!a.lse) a.lse = acquire_lse(pass);
}

void Decoder::complete_qk_norms(Arena& arena, std::int64_t n, Activations& a) const {
  const auto complete = [&](Tensor& tensor, const char* name, std::int64_t heads) {
    if (spec_.qk_norm) have(arena, tensor, name, DType::f32, {n, heads});
    if (spec_.projection_norm) have(arena, tensor, name, DType::f32, {n});
  };
  complete(a.q_inv_rms, "inverse rms of q", spec_.heads);
  complete(a.k_inv_rms, "inverse rms of k", spec_.kv_heads);
}

void Decoder::complete_output(Arena& arena, std::int64_t n, Tensor& raw, Tensor& inv_rms) const {
  have(arena, raw, "output before its norm", settings_.formats.activations, {n, spec_.hidden});
  have(arena, inv_rms, "inverse rms", DType::f32, {n});
}

void Decoder::complete_routing(Arena& arena, std::int64_t n, Activations& a) const {
  const std::int64_t choices = spec_.experts.per_token, pairs = n * choices, experts = spec_.experts.count;
  have(arena, a.router_logits, "router logits", DType::f32, {n, experts});
  have(arena, a.routing.experts, "routing", DType::i32, {n, choices});
  have(arena, a.routing.rows, "routing", DType::i32, {n, choices});
  have(arena, a.routing.pairs, "routing", DType::i32, {pairs});
  have(arena, a.routing.weights, "routing", DType::f32, {pairs});
  have(arena, a.routing.offsets, "routing", DType::i32, {experts + 1});
}

void Decoder::complete_mlp(Arena& arena, std::int64_t layer, std::int64_t n, Activations& a) const {
  const DType t = settings_.formats.activations;
  if (spec_.input_norms) {
    have(arena, a.inv_rms2, "inverse rms", DType::f32, {n});
    have(arena, a.normed2, "normed middle", t, {n, spec_.hidden});
  } else {
    a.normed2 = a.middle;
  }
  if (spec_.output_norms) complete_output(arena, n, a.mlp_out, a.mlp_out_inv_rms);
  if (spec_.layer(layer).experts) complete_routing(arena, n, a);
  const auto [rows, width] = mlp_size(spec_, layer, n);
  have(arena, a.gate_up, "gate and up", t, {rows, 2 * width});
  have(arena, a.activated, "activated", t, {rows, width});
}

}  // namespace so
