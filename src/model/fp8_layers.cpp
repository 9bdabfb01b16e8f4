#include "model/fp8_layers.h"

#include <vector>

#include "base/error.h"
#include "model/flops.h"
#include "model/parameters.h"
#include "ops/fp8_matrix.h"

namespace so {
namespace {

// The weights of a layer that are multiplied in FP8 where the layer is.
std::vector<Joined> fp8_weights(const DecoderSpec& spec, std::int64_t layer, const ParameterIndex::Layer& p) {
  std::vector<Joined> weights;
  if (spec.layer(layer).mixer == TokenMixer::attention) weights = {p.qkv, p.o};
  if (spec.layer(layer).mlp && !spec.layer(layer).experts) weights.insert(weights.end(), {p.gate_up, p.down});
  if (spec.layer(layer).experts && spec.experts.shared_apart)
    weights.insert(weights.end(), {p.shared_gate_up, p.shared_down});
  return weights;
}

void require_whole_blocks(const Parameter& parameter, const std::string& model) {
  for (const std::int64_t size : parameter.shape)
    if (size % fp8_block != 0)
      fail(
          "--fp8: {} of {} is {} by {}, and products in FP8 take sizes that are multiples of {}; leave --fp8 out, or "
          "keep its layer with --fp8_keep_layers",
          parameter.name, model, parameter.shape.front(), parameter.shape.back(), fp8_block);
}

}  // namespace

void use_fp8(DecoderSpec& spec, std::int64_t keep_first, std::int64_t keep_last, const std::string& model) {
  if (keep_first + keep_last >= spec.layers)
    fail("--fp8_keep_layers first={},last={}: {} has {} layers, of which none is left for FP8", keep_first, keep_last,
         model, spec.layers);
  const std::vector<Parameter> parameters = make_parameters(spec);
  const ParameterIndex index = make_parameter_index(spec, ParameterLayout(parameters));
  spec.layer_specs.resize(static_cast<std::size_t>(spec.layers));
  bool any = false;
  for (std::int64_t layer = keep_first; layer < spec.layers - keep_last; ++layer) {
    const auto weights = fp8_weights(spec, layer, index.layers[static_cast<std::size_t>(layer)]);
    std::int64_t elements = 0;
    for (const Joined& weight : weights)
      for (int i = 0; i < weight.count; ++i) {
        const Parameter& parameter = parameters[static_cast<std::size_t>(weight.first + i)];
        require_whole_blocks(parameter, model);
        elements += parameter.size();
      }
    spec.layer_specs[static_cast<std::size_t>(layer)].fp8 = !weights.empty();
    SO_CHECK(static_cast<double>(elements) == fp8_widths(spec, layer).weights, "{} weights in FP8 of layer {}",
             elements, layer);
    any = any || !weights.empty();
  }
  if (!any) fail("--fp8: {} has no layer with attention or a dense MLP whose products could be in FP8", model);
}

Fp8Widths fp8_widths(const DecoderSpec& spec, std::int64_t layer) {
  const LayerSpec l = spec.layer(layer);
  Fp8Widths widths;
  if (!l.fp8) return widths;
  if (l.mixer == TokenMixer::attention) {
    widths.projected = spec.projected_width(layer);
    widths.mixed = spec.mixed_width(layer);
  }
  widths.dense = !l.experts                  ? spec.dense_width(layer)
                 : spec.experts.shared_apart ? spec.experts.shared_intermediate
                                             : 0;
  widths.weights = static_cast<double>(spec.hidden) *
                   static_cast<double>(widths.projected + widths.mixed + (inputs_of(spec.gate) + 1) * widths.dense);
  return widths;
}

double fp8_share(const DecoderSpec& spec, std::span<const std::int32_t> cu_seqlens) {
  const double tokens = cu_seqlens.empty() ? 0.0 : cu_seqlens.back();
  double weights = 0;
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) weights += fp8_widths(spec, layer).weights;
  return weights > 0 ? 6 * tokens * weights / model_flops(spec, cu_seqlens) : 0;
}

}  // namespace so
