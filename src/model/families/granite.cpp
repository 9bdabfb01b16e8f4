// GraniteForCausalLM: Llama with multipliers of the embedding, of q.k, of what a block adds, and of the logits.
#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

void read(ConfigReader& config, DecoderSpec& spec) {
  spec.mlp_bias = config.boolean("mlp_bias", false);
  spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
  spec.embedding_scale = config.positive_number("embedding_multiplier", 1);
  spec.attention_scale = config.positive_number("attention_multiplier", 1);
  spec.residual_scale = config.positive_number("residual_multiplier", 1);
  spec.logits_scale = 1 / config.positive_number("logits_scaling", 1);
}

}  // namespace

const Family granite_family{
    .architecture = "GraniteForCausalLM", .model_type = "granite", .names = llama_tensor_names(), .read = read};

}  // namespace so
