#include "model/parameters.h"

#include <unordered_map>

#include "base/error.h"

namespace so {
namespace {

struct Shape {
  bool present = true, decay = true, joined = false;
  std::vector<std::int64_t> dims;
};

// What each role is in a given spec. The order in which roles appear in a family's table must keep joined groups
// together; ParameterLayout::view checks it.
Shape shape_of(Role role, const DecoderSpec& s) {
  const auto q = s.q_width(), kv = s.kv_width(), h = s.hidden, f = s.intermediate;
  switch (role) {
    case Role::embedding:
      return {.dims = {s.vocab, h}};
    case Role::input_norm:
    case Role::post_attention_norm:
    case Role::final_norm:
      return {.decay = false, .dims = {h}};
    case Role::q:
      return {.dims = {q, h}};
    case Role::k:
    case Role::v:
      return {.joined = true, .dims = {kv, h}};
    case Role::q_bias:
      return {.present = s.attention_bias, .decay = false, .dims = {q}};
    case Role::k_bias:
    case Role::v_bias:
      return {.present = s.attention_bias, .decay = false, .joined = true, .dims = {kv}};
    case Role::q_norm:
    case Role::k_norm:
      return {.present = s.qk_norm, .decay = false, .dims = {s.head_dim}};
    case Role::o:
      return {.dims = {h, q}};
    case Role::o_bias:
      return {.present = s.attention_bias, .decay = false, .dims = {h}};
    case Role::gate:
      return {.dims = {f, h}};
    case Role::up:
      return {.joined = true, .dims = {f, h}};
    case Role::gate_bias:
      return {.present = s.mlp_bias, .decay = false, .dims = {f}};
    case Role::up_bias:
      return {.present = s.mlp_bias, .decay = false, .joined = true, .dims = {f}};
    case Role::down:
      return {.dims = {h, f}};
    case Role::down_bias:
      return {.present = s.mlp_bias, .decay = false, .dims = {h}};
    case Role::lm_head:
      return {.present = !s.tied_embeddings, .dims = {s.vocab, h}};
  }
  SO_CHECK(false, "role {}", static_cast<int>(role));
}

bool of_layer(Role role) { return role != Role::embedding && role != Role::final_norm && role != Role::lm_head; }

std::string name_in(const Family& family, Role role, std::int64_t layer) {
  for (const TensorName& row : family.names)
    if (row.role == role) return of_layer(role) ? fmt::format(fmt::runtime(row.name), layer) : std::string(row.name);
  SO_CHECK(false, "family {} names no role {}", family.architecture, static_cast<int>(role));
}

}  // namespace

std::vector<Parameter> make_parameters(const DecoderSpec& spec) {
  const Family& family = find_family(spec.architecture);
  std::vector<Parameter> parameters;
  const auto add = [&](Role role, std::int64_t layer, int unit) {
    Shape shape = shape_of(role, spec);
    if (!shape.present) return;
    parameters.push_back({name_in(family, role, layer), std::move(shape.dims), shape.decay, unit, shape.joined});
  };
  add(Role::embedding, 0, 0);
  for (std::int64_t layer = 0; layer < spec.layers; ++layer)
    for (const TensorName& row : family.names)
      if (of_layer(row.role)) add(row.role, layer, layer_unit(layer));
  add(Role::final_norm, 0, head_unit(spec));
  add(Role::lm_head, 0, head_unit(spec));
  return parameters;
}

ParameterIndex make_parameter_index(const DecoderSpec& spec, const ParameterLayout& layout) {
  const Family& family = find_family(spec.architecture);
  std::unordered_map<std::string_view, int> places;
  for (int i = 0; i < layout.count(); ++i) places.emplace(layout.parameter(i).name, i);
  const auto find = [&](Role role, std::int64_t layer = 0) {
    const auto place = places.find(name_in(family, role, layer));
    return place == places.end() ? -1 : place->second;
  };
  ParameterIndex index;
  index.embedding = find(Role::embedding);
  index.final_norm = find(Role::final_norm);
  index.lm_head = spec.tied_embeddings ? index.embedding : find(Role::lm_head);
  for (std::int64_t l = 0; l < spec.layers; ++l)
    index.layers.push_back({.input_norm = find(Role::input_norm, l),
                            .qkv = find(Role::q, l),
                            .qkv_bias = find(Role::q_bias, l),
                            .q_norm = find(Role::q_norm, l),
                            .k_norm = find(Role::k_norm, l),
                            .o = find(Role::o, l),
                            .o_bias = find(Role::o_bias, l),
                            .post_attention_norm = find(Role::post_attention_norm, l),
                            .gate_up = find(Role::gate, l),
                            .gate_up_bias = find(Role::gate_bias, l),
                            .down = find(Role::down, l),
                            .down_bias = find(Role::down_bias, l)});
  return index;
}

std::int64_t matmul_parameters(const DecoderSpec& s) {
  return s.layers * (s.qkv_width() * s.hidden + s.q_width() * s.hidden + 3 * s.hidden * s.intermediate) +
         s.vocab * s.hidden;
}

}  // namespace so
