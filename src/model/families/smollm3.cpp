// SmolLM3ForCausalLM: Llama with layers, every fourth one, whose queries and keys are not rotated.
#include "base/error.h"
#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

// no_rope_layers has a 1 for each layer that rotates; without it every no_rope_layer_interval-th one does not.
void read_rotations(const ConfigReader& config, DecoderSpec& spec) {
  const std::vector<std::int64_t> listed = config.whole_numbers("no_rope_layers");
  const std::int64_t interval = config.positive_int("no_rope_layer_interval", 4);
  if (config.has("no_rope_layers") && static_cast<std::int64_t>(listed.size()) != spec.layers)
    config.refuse("no_rope_layers", fmt::format("has {} entries for {} layers", listed.size(), spec.layers));
  for (std::int64_t i = 0; i < spec.layers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int64_t rotates = listed.empty() ? ((i + 1) % interval != 0 ? 1 : 0) : listed[at];
    if (rotates != 0 && rotates != 1) config.refuse("no_rope_layers", "expected 1 for layers that rotate, else 0");
    spec.layer_specs[at].rotation = rotates == 1 ? LayerRotation::global : LayerRotation::none;
  }
}

void read(ConfigReader& config, DecoderSpec& spec) {
  spec.mlp_bias = config.boolean("mlp_bias", false);
  spec.tied_embeddings = config.boolean("tie_word_embeddings", true);
  spec.layer_specs.resize(static_cast<std::size_t>(spec.layers));
  read_rotations(config, spec);
  const bool windows = config.boolean("use_sliding_window", false) && config.has("sliding_window");
  const std::int64_t window = windows ? config.positive_int("sliding_window") : 0;
  read_windows(config, spec, window, [](const ConfigReader&, std::int64_t) { return false; });
  // Without layer_types those that do not rotate have the window.
  if (windows && config.texts("layer_types").empty())
    for (LayerSpec& layer : spec.layer_specs)
      if (layer.rotation == LayerRotation::none) layer.window = window;
}

}  // namespace

const Family smollm3_family{.architecture = "SmolLM3ForCausalLM",
                            .model_type = "smollm3",
                            .names = llama_tensor_names(),
                            .read = read,
                            .kv_heads = 4,
                            .rope_theta = 2000000};

}  // namespace so
