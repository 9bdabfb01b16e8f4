// Ministral3ForCausalLM: Mistral with YaRN, and queries that grow with their position.
#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

void read(ConfigReader& config, DecoderSpec& spec) {
  spec.qkv_bias = spec.o_bias = false;
  if (spec.head_dim == 0 && !config.is_null("head_dim")) spec.head_dim = 128;
  spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
  if (config.has("sliding_window"))
    spec.layer_specs.assign(static_cast<std::size_t>(spec.layers), {config.positive_int("sliding_window"), false});
}

}  // namespace

const Family ministral3_family{
    .architecture = "Ministral3ForCausalLM",
    .model_type = "ministral3",
    .names = llama_tensor_names(),
    .read = read,
    .kv_heads = 8,
    .rms_norm_eps = 1e-5,
    .query_growth = true,
    .sizes = {.vocab = 131072, .hidden = 4096, .layers = 34, .heads = 32, .intermediate = 14336, .positions = 262144},
    .wrappers = mistral3_wrappers()};

}  // namespace so
