// MistralForCausalLM: Llama with a sliding window on every layer.
#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

void read(ConfigReader& config, DecoderSpec& spec) {
  spec.qkv_bias = spec.o_bias = false;
  spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
  if (config.is_null("sliding_window")) return;
  // Without the key, transformers has 4096.
  spec.layer_specs.assign(static_cast<std::size_t>(spec.layers), {config.positive_int("sliding_window", 4096), false});
}

}  // namespace

const Family mistral_family{.architecture = "MistralForCausalLM",
                            .model_type = "mistral",
                            .names = llama_tensor_names(),
                            .read = read,
                            .kv_heads = 8};

}  // namespace so
