#include "model/parameters.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "model/stored_names.h"

namespace so {
namespace {

struct Shape {
  bool present = true, decay = true, joined = false, trained = true;
  std::vector<std::int64_t> dims;
};

// Returns the shape of a role's parameter in a layer. The order of roles in a family's table must keep joined groups
// together; ParameterLayout::view checks it.
Shape shape_of(Role role, const DecoderSpec& s, std::int64_t layer) {
  const AttentionShape shape = s.shape(layer);
  const auto q = shape.q_width(), kv = shape.kv_width(), h = s.hidden, f = s.dense_width(layer);
  const ExpertSpec& x = s.experts;
  const DeltaSpec& d = s.delta;
  const LatentSpec& l = s.latent;
  const StateSpaceSpec& m = s.state_space;
  const bool delta = s.is_delta(layer), latent = s.is_latent(layer), space = s.is_state_space(layer),
             attends = s.attends(layer) && !latent, has_keys = attends && !shape.takes_keys,
             has_values = has_keys && !shape.keys_are_values, mixer = s.has_mixer(layer), mlp = s.layer(layer).mlp;
  const bool experts = s.layer(layer).experts, dense = mlp && !experts, expert_biases = experts && x.biases;
  const bool stacked = experts && x.stacked, one_by_one = experts && !x.stacked;
  const std::int64_t inputs = inputs_of(s.gate);  // of an MLP, for each column of its activation
  const bool gates = inputs > 1;
  const bool shared = experts && x.shared_intermediate > 0;
  const bool qk_norms = s.qk_norm || s.projection_norm, layer_inputs = s.layer_input > 0;
  // A weight of all experts, from `in` to `out` columns.
  const auto of_all = [&](std::int64_t in, std::int64_t out) -> Shape {
    if (x.layout == ExpertLayout::in_out) return {.present = stacked, .dims = {x.count, in, out}};
    return {.present = stacked, .dims = {x.count, out, in}};
  };
  switch (role) {
    case Role::embedding:
      return {.dims = {s.vocab, h}};
    case Role::layer_input_table:
      return {.present = layer_inputs, .dims = {s.layer_input_vocab, s.layer_inputs_width()}};
    case Role::layer_input_projection:
      return {.present = layer_inputs, .dims = {s.layer_inputs_width(), h}};
    case Role::layer_input_norm:
      return {.present = layer_inputs, .decay = false, .dims = {s.layer_input}};
    case Role::layer_scale:
      return {.present = s.layer_scales, .decay = false, .trained = false, .dims = {1}};
    case Role::input_norm:
      return {.present = mixer && s.input_norms, .decay = false, .dims = {h}};
    case Role::mlp_norm:
      return {.present = mlp && s.input_norms, .decay = false, .dims = {h}};
    case Role::attention_output_norm:
    case Role::mlp_output_norm:
      return {.present = s.output_norms, .decay = false, .dims = {h}};
    case Role::final_norm:
      return {.decay = s.final_norm_decays, .dims = {h}};
    case Role::q:
      return {.present = attends, .dims = {shape.projected_q_width(), h}};
    case Role::k:
      return {.present = has_keys, .joined = true, .dims = {kv, h}};
    case Role::v:
      return {.present = has_values, .joined = true, .dims = {kv, h}};
    case Role::qkv:
      return {.present = attends, .dims = {shape.qkv_width(), h}};
    case Role::q_bias:
      return {.present = attends && s.qkv_bias, .decay = false, .dims = {shape.projected_q_width()}};
    case Role::k_bias:
      return {.present = has_keys && s.qkv_bias, .decay = false, .joined = true, .dims = {kv}};
    case Role::v_bias:
      return {.present = has_values && s.qkv_bias, .decay = false, .joined = true, .dims = {kv}};
    case Role::q_norm:
      return {.present = attends && qk_norms, .decay = false, .dims = {s.qk_norm ? shape.head_dim : q}};
    case Role::k_norm:
      return {.present = has_keys && qk_norms, .decay = false, .dims = {s.qk_norm ? shape.head_dim : kv}};
    case Role::sinks:
      return {.present = attends && s.sinks, .dims = {s.heads}};
    case Role::q_latent:
      return {.present = latent, .dims = {l.q_rank, h}};
    case Role::kv_latent:
      return {.present = latent, .joined = true, .dims = {l.kv_rank + l.rotary_dim, h}};
    case Role::q_latent_norm:
      return {.present = latent, .decay = false, .dims = {l.q_rank}};
    case Role::q_heads:
      return {.present = latent, .dims = {q, l.q_rank}};
    case Role::kv_latent_norm:
      return {.present = latent, .decay = false, .dims = {l.kv_rank}};
    case Role::kv_heads:
      return {.present = latent, .dims = {s.heads * (l.still_dim + l.v_dim), l.kv_rank}};
    case Role::o:
      return {.present = attends || latent, .dims = {h, s.mixed_width(layer)}};
    case Role::o_bias:
      return {.present = (attends || latent) && s.o_bias, .decay = false, .dims = {h}};
    case Role::delta_qkv:
      return {.present = delta && !d.by_key_head, .dims = {d.convolved_width(), h}};
    case Role::delta_z:
      return {.present = delta && !d.by_key_head, .joined = true, .dims = {d.v_width(), h}};
    case Role::delta_b:
    case Role::delta_a:
      return {.present = delta && !d.by_key_head, .joined = true, .dims = {d.v_heads, h}};
    case Role::delta_qkvz:
      return {.present = delta && d.by_key_head, .dims = {d.convolved_width() + d.v_width(), h}};
    case Role::delta_ba:
      return {.present = delta && d.by_key_head, .joined = true, .dims = {2 * d.v_heads, h}};
    case Role::delta_convolution:
      return {.present = delta, .dims = {d.convolved_width(), 1, d.convolution}};
    case Role::delta_a_log:
      return {.present = delta, .dims = {d.v_heads}};
    case Role::delta_dt_bias:
      return {.present = delta, .decay = false, .dims = {d.v_heads}};
    case Role::delta_norm:
      return {.present = delta, .decay = false, .dims = {d.v_dim}};
    case Role::delta_out:
      return {.present = delta, .dims = {h, d.v_width()}};
    case Role::space_in:
      return {.present = space, .dims = {m.projected_width(), h}};
    case Role::space_convolution:
      return {.present = space, .dims = {m.convolved_width(), 1, m.convolution}};
    case Role::space_convolution_bias:
      return {.present = space && m.convolution_bias, .decay = false, .dims = {m.convolved_width()}};
    case Role::space_dt_bias:
      return {.present = space, .decay = false, .dims = {m.heads}};
    case Role::space_a_log:
    case Role::space_skip:
      return {.present = space, .dims = {m.heads}};
    case Role::space_norm:
      return {.present = space, .decay = false, .dims = {m.width()}};
    case Role::space_out:
      return {.present = space, .dims = {h, m.width()}};
    case Role::gate:
      return {.present = dense && gates, .dims = {f, h}};
    case Role::up:
      return {.present = dense, .joined = gates, .dims = {f, h}};
    case Role::gate_up:
      return {.present = dense, .dims = {inputs * f, h}};
    case Role::gate_bias:
      return {.present = dense && gates && s.mlp_bias, .decay = false, .dims = {f}};
    case Role::up_bias:
      return {.present = dense && s.mlp_bias, .decay = false, .joined = gates, .dims = {f}};
    case Role::down:
      return {.present = dense, .dims = {h, f}};
    case Role::down_bias:
      return {.present = dense && s.mlp_bias, .decay = false, .dims = {h}};
    case Role::router:
      return {.present = experts, .dims = {x.count, h}};
    case Role::router_bias:
      return {.present = experts && x.router_bias, .decay = false, .dims = {x.count}};
    case Role::selection_bias:
      return {.present = false};
    case Role::expert_gate:
      return {.present = one_by_one && gates, .joined = true, .dims = {x.intermediate, h}};
    case Role::expert_up:
      return {.present = one_by_one, .joined = true, .dims = {x.intermediate, h}};
    case Role::expert_down:
      return {.present = one_by_one, .joined = true, .dims = {h, x.intermediate}};
    case Role::experts_gate_up:
      return of_all(h, inputs * x.intermediate);
    case Role::experts_gate_up_bias:
      return {.present = expert_biases, .decay = false, .dims = {x.count, inputs * x.intermediate}};
    case Role::experts_down:
      return of_all(x.intermediate, h);
    case Role::experts_down_bias:
      return {.present = expert_biases, .decay = false, .dims = {x.count, h}};
    case Role::shared_gate:
      return {.present = shared && gates, .dims = {x.shared_intermediate, h}};
    case Role::shared_up:
      return {.present = shared, .joined = gates, .dims = {x.shared_intermediate, h}};
    case Role::shared_down:
      return {.present = shared, .dims = {h, x.shared_intermediate}};
    case Role::shared_output_gate:
      return {.present = shared && x.shared_gate, .dims = {1, h}};
    case Role::shared_output_norm:
    case Role::experts_input_norm:
    case Role::experts_output_norm:
      return {.present = shared && x.shared_apart, .decay = false, .dims = {h}};
    case Role::router_norm:
      return {.present = shared && x.shared_apart, .dims = {h}};
    case Role::expert_scale:
      return {.present = experts && x.expert_scales, .dims = {x.count}};
    case Role::layer_input_gate:
      return {.present = layer_inputs, .dims = {s.layer_input, h}};
    case Role::layer_input_out:
      return {.present = layer_inputs, .dims = {h, s.layer_input}};
    case Role::layer_input_output_norm:
      return {.present = layer_inputs, .decay = false, .dims = {h}};
    case Role::lm_head:
      return {.present = !s.tied_embeddings, .dims = {s.vocab, h}};
  }
  SO_BUG("role {}", static_cast<int>(role));
}

// Those that the model has once, in the unit of the embedding.
constexpr std::array<Role, 4> below_layers{Role::embedding, Role::layer_input_table, Role::layer_input_projection,
                                           Role::layer_input_norm};

// Whether it is in the unit of its layer.
bool of_layer(Role role) {
  return std::find(below_layers.begin(), below_layers.end(), role) == below_layers.end() && role != Role::layer_scale &&
         role != Role::final_norm && role != Role::lm_head;
}

bool of_one_expert(Role role) {
  return role == Role::expert_gate || role == Role::expert_up || role == Role::expert_down;
}

// Empty if the family has no such tensor.
std::string name_in(const Family& family, Role role, std::int64_t layer, std::int64_t expert = 0) {
  for (const TensorName& row : family.names)
    if (row.role == role) return fmt::format(fmt::runtime(row.name), layer, expert);
  return {};
}

}  // namespace

std::vector<Parameter> make_parameters(const DecoderSpec& spec) {
  const Family& family = find_family(spec.architecture);
  std::vector<Parameter> parameters;
  const auto add = [&](Role role, int unit, std::int64_t layer, std::int64_t expert = 0, bool first = false) {
    Shape shape = shape_of(role, spec, layer);
    if (!shape.present) return;
    parameters.push_back({.name = name_in(family, role, layer, expert),
                          .shape = std::move(shape.dims),
                          .decay = shape.decay,
                          .unit = unit,
                          .joined = shape.joined && !first,
                          .trained = shape.trained});
  };
  const bool gates = inputs_of(spec.gate) > 1;
  for (const Role role : below_layers) add(role, 0, 0);
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) add(Role::layer_scale, 0, layer);
  for (std::int64_t layer = 0; layer < spec.layers; ++layer)
    for (const TensorName& row : family.names) {
      const int unit = layer_unit(layer);
      if (of_one_expert(row.role)) {
        // One expert after another, so that they are one array; each one's gate before its up, if there are gates.
        if (row.role == Role::expert_up && gates) continue;
        for (std::int64_t e = 0; e < spec.experts.count; ++e) {
          add(row.role, unit, layer, e, e == 0);
          if (row.role == Role::expert_gate) add(Role::expert_up, unit, layer, e);
        }
      } else if (of_layer(row.role)) {
        add(row.role, unit, layer);
      }
    }
  add(Role::final_norm, head_unit(spec), 0);
  add(Role::lm_head, head_unit(spec), 0);
  return parameters;
}

std::vector<Parameter> make_parameters(const DecoderSpec& spec, const ParameterRules& rules) {
  std::vector<Parameter> parameters = make_parameters(spec);
  const Family& family = find_family(spec.architecture);
  std::vector<ParameterAlias> aliases;
  const std::string head = name_in(family, Role::lm_head, 0), embedding = name_in(family, Role::embedding, 0);
  if (spec.tied_embeddings) aliases.push_back({head, embedding});
  for (const StoredNames& names : spec.wrapper.empty() ? std::vector<StoredNames>() : possible_names(spec)) {
    if (spec.tied_embeddings) aliases.push_back({names.stored(head), embedding});
    for (const Parameter& p : parameters) aliases.push_back({names.stored(p.name), p.name});
  }
  apply(rules, aliases, parameters);
  return parameters;
}

std::vector<std::int64_t> unit_parameter_counts(const DecoderSpec& spec) {
  const auto count = [&](Role role, std::int64_t layer) {
    const Shape shape = shape_of(role, spec, layer);
    std::int64_t n = shape.present ? (of_one_expert(role) ? spec.experts.count : 1) : 0;
    for (const std::int64_t dim : shape.dims) n *= dim;
    return n;
  };
  std::vector<std::int64_t> units(static_cast<std::size_t>(head_unit(spec)) + 1, 0);
  units.front() = spec.layers * count(Role::layer_scale, 0);
  for (const Role role : below_layers) units.front() += count(role, 0);
  for (std::int64_t layer = 0; layer < spec.layers; ++layer)
    for (const TensorName& row : find_family(spec.architecture).names)
      if (of_layer(row.role)) units[static_cast<std::size_t>(layer_unit(layer))] += count(row.role, layer);
  units.back() = count(Role::final_norm, 0) + count(Role::lm_head, 0);
  return units;
}

std::int64_t parameter_count(const DecoderSpec& spec) {
  const std::vector<std::int64_t> units = unit_parameter_counts(spec);
  return std::accumulate(units.begin(), units.end(), std::int64_t{0});
}

ParameterIndex make_parameter_index(const DecoderSpec& spec, const ParameterLayout& layout) {
  const Family& family = find_family(spec.architecture);
  // Two roles may have one name, in layers of different kinds.
  const auto find = [&](Role role, std::int64_t layer = 0) {
    return shape_of(role, spec, layer).present ? layout.find(name_in(family, role, layer)) : -1;
  };
  // A role, and how many parameters from it on are joined.
  struct Stored {
    Role role;
    std::int64_t count = 1;
  };
  const auto joined = [&](std::int64_t layer, std::initializer_list<Stored> ways) {
    for (const Stored& way : ways)
      if (const int first = find(way.role, layer); first >= 0) return Joined{first, static_cast<int>(way.count)};
    return Joined{};
  };
  ParameterIndex index;
  index.embedding = find(Role::embedding);
  index.final_norm = find(Role::final_norm);
  index.lm_head = spec.tied_embeddings ? index.embedding : find(Role::lm_head);
  index.layer_input_table = joined(0, {{Role::layer_input_table}});
  index.layer_input_projection = joined(0, {{Role::layer_input_projection}});
  index.layer_input_norm = joined(0, {{Role::layer_input_norm}});
  const std::int64_t experts = spec.experts.count, inputs = inputs_of(spec.gate);
  // Gate and up as files have them apart, or up alone.
  const bool gates = inputs > 1;
  const Role dense = gates ? Role::gate : Role::up, dense_bias = gates ? Role::gate_bias : Role::up_bias,
             of_expert = gates ? Role::expert_gate : Role::expert_up,
             of_shared = gates ? Role::shared_gate : Role::shared_up;
  for (std::int64_t l = 0; l < spec.layers; ++l) {
    const AttentionShape shape = spec.shape(l);
    const std::int64_t qkv = shape.takes_keys ? 1 : shape.keys_are_values ? 2 : 3;
    index.layers.push_back(
        {.scale = joined(l, {{Role::layer_scale}}),
         .input_norm = joined(l, {{Role::input_norm}}),
         .qkv = joined(l, {{Role::q, qkv},
                           {Role::qkv},
                           {Role::delta_qkv, 4},
                           {Role::delta_qkvz, 2},
                           {Role::q_latent, 2},
                           {Role::space_in}}),
         .qkv_bias = joined(l, {{Role::q_bias, qkv}}),
         .q_norm = joined(l, {{Role::q_norm}}),
         .k_norm = joined(l, {{Role::k_norm}}),
         .sinks = joined(l, {{Role::sinks}}),
         .q_latent_norm = joined(l, {{Role::q_latent_norm}}),
         .q_heads = joined(l, {{Role::q_heads}}),
         .kv_latent_norm = joined(l, {{Role::kv_latent_norm}}),
         .kv_heads = joined(l, {{Role::kv_heads}}),
         .o = joined(l, {{Role::o}, {Role::delta_out}, {Role::space_out}}),
         .o_bias = joined(l, {{Role::o_bias}}),
         .attention_output_norm = joined(l, {{Role::attention_output_norm}}),
         .mlp_norm = joined(l, {{Role::mlp_norm}}),
         .convolution = joined(l, {{Role::delta_convolution}, {Role::space_convolution}}),
         .convolution_bias = joined(l, {{Role::space_convolution_bias}}),
         .a_log = joined(l, {{Role::delta_a_log}, {Role::space_a_log}}),
         .dt_bias = joined(l, {{Role::delta_dt_bias}, {Role::space_dt_bias}}),
         .skip = joined(l, {{Role::space_skip}}),
         .state_norm = joined(l, {{Role::delta_norm}, {Role::space_norm}}),
         .router = joined(l, {{Role::router}}),
         .router_bias = joined(l, {{Role::router_bias}}),
         .gate_up =
             joined(l, {{dense, inputs}, {Role::gate_up}, {of_expert, inputs * experts}, {Role::experts_gate_up}}),
         .gate_up_bias = joined(l, {{dense_bias, inputs}, {Role::experts_gate_up_bias}}),
         .down = joined(l, {{Role::down}, {Role::expert_down, experts}, {Role::experts_down}}),
         .down_bias = joined(l, {{Role::down_bias}, {Role::experts_down_bias}}),
         .shared_gate_up = joined(l, {{of_shared, inputs}}),
         .shared_down = joined(l, {{Role::shared_down}}),
         .shared_output_gate = joined(l, {{Role::shared_output_gate}}),
         .shared_output_norm = joined(l, {{Role::shared_output_norm}}),
         .experts_input_norm = joined(l, {{Role::experts_input_norm}}),
         .experts_output_norm = joined(l, {{Role::experts_output_norm}}),
         .router_norm = joined(l, {{Role::router_norm}}),
         .expert_scale = joined(l, {{Role::expert_scale}}),
         .mlp_output_norm = joined(l, {{Role::mlp_output_norm}}),
         .layer_input_gate = joined(l, {{Role::layer_input_gate}}),
         .layer_input_out = joined(l, {{Role::layer_input_out}}),
         .layer_input_output_norm = joined(l, {{Role::layer_input_output_norm}})});
  }
  return index;
}

std::int64_t matmul_parameters(const DecoderSpec& s, std::int64_t layer) {
  const ExpertSpec& x = s.experts;
  const std::int64_t router = s.layer(layer).experts ? (x.count + (x.shared_gate ? 1 : 0)) * s.hidden : 0;
  return (s.projected_width(layer) + s.mixed_width(layer) + s.mlp_matrices() * s.mlp_width(layer) + 2 * s.layer_input) *
             s.hidden +
         s.latent_parameters(layer) + router;
}

std::int64_t matmul_parameters(const DecoderSpec& s) {
  std::int64_t n = (s.vocab + s.layer_inputs_width()) * s.hidden;
  for (std::int64_t layer = 0; layer < s.layers; ++layer) n += matmul_parameters(s, layer);
  return n;
}

}  // namespace so
