// MistralForCausalLM: Llama with a sliding window on every layer.
#include <array>

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

std::span<const Wrapper> mistral3_wrappers() {
  static const std::array<Wrapper, 1> wrappers{{{.architecture = "Mistral3ForConditionalGeneration",
                                                 .model_type = "mistral3",
                                                 .names = llava_text_names(),
                                                 .carried = llava_carried_names(),
                                                 .tied_embeddings = true}}};
  return wrappers;
}

const Family mistral_family{.architecture = "MistralForCausalLM",
                            .model_type = "mistral",
                            .names = llama_tensor_names(),
                            .read = read,
                            .kv_heads = 8,
                            .wrappers = mistral3_wrappers()};

}  // namespace so
