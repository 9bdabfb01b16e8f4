#include "model/decoder/across_layers.h"

namespace so {

AcrossLayers acquire_across_layers(const DecoderContext& context, Arena& arena, std::int64_t tokens, bool backward) {
  const DecoderSpec& s = context.spec;
  const DType t = context.activations();
  AcrossLayers across;
  if (s.layer_input > 0) across.layer_inputs = arena.acquire("inputs of layers", t, {tokens, s.layer_inputs_width()});
  if (!s.shares_keys()) return across;
  for (std::int64_t layer = 0; layer < s.layers; ++layer) {
    AcrossLayers::Keys& keys = across.keys.emplace_back();
    if (!s.gives_keys(layer)) continue;
    const std::int64_t width = 2 * s.shape(layer).kv_width();
    keys.rows = arena.acquire("keys and values for other layers", t, {tokens, width});
    if (backward) keys.gradient = arena.acquire("gradient of other layers' keys and values", t, {tokens, width});
  }
  return across;
}

}  // namespace so
