#include "model/fp8_layers.h"

#include <vector>

#include "base/error.h"
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
    for (const Joined& weight : weights)
      for (int i = 0; i < weight.count; ++i)
        require_whole_blocks(parameters[static_cast<std::size_t>(weight.first + i)], model);
    spec.layer_specs[static_cast<std::size_t>(layer)].fp8 = !weights.empty();
    any = any || !weights.empty();
  }
  if (!any) fail("--fp8: {} has no layer with attention or a dense MLP whose products could be in FP8", model);
}

}  // namespace so
