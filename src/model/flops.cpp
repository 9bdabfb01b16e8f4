#include "model/flops.h"

#include <algorithm>
#include <utility>

#include "model/parameters.h"

namespace so {

namespace {

struct Counts {
  double tokens = 0, pairs = 0;  // pairs of query and key that meet
};

// With a window of 0 a query meets all keys up to its own.
Counts count(std::span<const std::int32_t> cu_seqlens, std::int64_t window) {
  Counts counts;
  for (std::size_t i = 1; i < cu_seqlens.size(); ++i) {
    const double n = cu_seqlens[i] - cu_seqlens[i - 1];
    counts.tokens += n;
    counts.pairs += n * (n + 1) / 2;
    const double beyond = window > 0 ? std::max(0.0, n - static_cast<double>(window)) : 0;
    counts.pairs -= beyond * (beyond + 1) / 2;
  }
  return counts;
}

}  // namespace

double mixing_flops(const DecoderSpec& spec, std::int64_t layer, std::span<const std::int32_t> cu_seqlens) {
  const auto [tokens, pairs] = count(cu_seqlens, spec.layer(layer).window);
  if (!spec.has_mixer(layer)) return 0;
  if (spec.is_delta(layer)) return 8 * static_cast<double>(spec.delta.v_width() * spec.delta.k_dim) * tokens;
  if (spec.is_state_space(layer))
    return 4 * static_cast<double>(spec.state_space.width() * spec.state_space.state) * tokens;
  return 4 * static_cast<double>(spec.shape(layer).q_width()) * pairs;
}

double attention_pairs(std::span<const std::int32_t> cu_seqlens, std::int64_t window) {
  return count(cu_seqlens, window).pairs;
}

std::vector<UnitBackward> unit_backward(const DecoderSpec& spec, const ParameterLayout& layout) {
  const ParameterIndex index = make_parameter_index(spec, layout);
  const int first_trained = layout.first_trained_unit();
  std::vector<UnitBackward> units(static_cast<std::size_t>(layout.units()));
  struct Matrix {
    Joined joined;
    double used = 1;  // the share of it that a token meets
  };
  const auto set = [&](int unit, std::initializer_list<Matrix> matrices) {
    UnitBackward& backward = units[static_cast<std::size_t>(unit)];
    backward.runs = unit >= first_trained;
    double all = 0, computed = 0;
    for (const auto& [joined, used] : matrices) {
      double elements = 0;
      for (int p = joined.first; p < joined.first + joined.count; ++p)
        elements += used * static_cast<double>(layout.parameter(p).size());
      all += elements;
      if (layout.trains_any(joined.first, joined.count)) computed += elements;  // one product for all that is joined
    }
    if (all > 0) backward.weights = computed / all;
  };
  set(0, {{index.layer_input_projection}});
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    const ParameterIndex::Layer& l = index.layers[static_cast<std::size_t>(layer)];
    const double chosen = spec.layer(layer).experts
                              ? static_cast<double>(spec.experts.per_token) / static_cast<double>(spec.experts.count)
                              : 1;
    set(layer_unit(layer), {{l.qkv},
                            {l.q_heads},
                            {l.kv_heads},
                            {l.o},
                            {l.router},
                            {l.gate_up, chosen},
                            {l.down, chosen},
                            {l.shared_gate_up},
                            {l.shared_down},
                            {l.shared_output_gate},
                            {l.layer_input_gate},
                            {l.layer_input_out}});
  }
  set(head_unit(spec), {{{index.lm_head, 1}}});
  return units;
}

double model_flops(const DecoderSpec& spec, std::span<const std::int32_t> cu_seqlens,
                   std::span<const UnitBackward> backward) {
  double flops = 0;
  for (const UnitFlops& unit : unit_flops(spec, cu_seqlens, backward)) flops += unit.forward + unit.backward;
  return flops;
}

std::vector<UnitFlops> unit_flops(const DecoderSpec& spec, std::span<const std::int32_t> cu_seqlens,
                                  std::span<const UnitBackward> backward) {
  std::vector<UnitFlops> units(static_cast<std::size_t>(head_unit(spec)) + 1);
  // The gradients of a product's input and of its weight take as much as the product each, and so do two of
  // attention's and of the delta rule's.
  const auto set = [&](int unit, double products, double attention) {
    const auto u = static_cast<std::size_t>(unit);
    const UnitBackward part = backward.empty() ? UnitBackward{} : backward[u];
    units[u] = {products + attention, part.runs ? (1 + part.weights) * products + 2 * attention : 0};
  };
  const double tokens = count(cu_seqlens, 0).tokens;
  set(0, 2 * static_cast<double>(spec.layer_inputs_width() * spec.hidden) * tokens, 0);
  for (std::int64_t layer = 0; layer < spec.layers; ++layer)
    set(layer_unit(layer), 2 * static_cast<double>(matmul_parameters(spec, layer)) * tokens,
        mixing_flops(spec, layer, cu_seqlens));
  set(head_unit(spec), 2 * static_cast<double>(spec.vocab * spec.hidden) * tokens, 0);
  return units;
}

double reference_flops(const DecoderSpec& spec, std::int64_t rows, std::int64_t row_length, bool recompute,
                       std::span<const UnitBackward> backward) {
  std::vector<std::int64_t> parameters = unit_parameter_counts(spec);
  const ExpertSpec& x = spec.experts;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer)
    if (spec.layer(layer).experts)
      parameters[static_cast<std::size_t>(layer_unit(layer))] -=
          (x.count - x.per_token) * spec.mlp_matrices() * spec.hidden * x.intermediate;
  // The product of tied embeddings is the head's.
  if (spec.tied_embeddings) parameters.back() += std::exchange(parameters.front(), 0);
  double products = 0, attention = 0;  // the sums of c P and c H
  for (std::size_t unit = 0; unit < parameters.size(); ++unit) {
    const UnitBackward part = backward.empty() ? UnitBackward{} : backward[unit];
    const double without_gradients = part.runs ? (recompute ? 3 : 2) : 1;
    products += (without_gradients + (part.runs ? part.weights : 0)) * static_cast<double>(parameters[unit]);
    const bool layer = unit > 0 && unit + 1 < parameters.size();
    if (layer && spec.attends(static_cast<std::int64_t>(unit) - 1))
      attention += (without_gradients + (part.runs ? 1 : 0)) * static_cast<double>(spec.hidden);
  }
  const auto s = static_cast<double>(row_length);
  return static_cast<double>(rows) * (2 * products * s + 4 * attention * s * s);
}

}  // namespace so
