// SeedOssForCausalLM: Llama with an explicit head size, and biases on q, k and v but not on o.
#include "base/error.h"
#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

void read(ConfigReader& config, DecoderSpec& spec) {
  spec.qkv_bias = config.boolean("attention_bias", true);
  spec.o_bias = config.boolean("attention_out_bias", false);
  spec.mlp_bias = config.boolean("mlp_bias", false);
  if (!config.has("head_dim")) spec.head_dim = 128;
  spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
  // The published config carries the dropout of its pretraining.
  for (const char* key : {"attention_dropout", "residual_dropout"})
    if (const double rate = config.number(key, 0.1); rate != 0)
      spec.remarks.push_back(fmt::format("config.json has {} {}; training here is without dropout", key, rate));
}

}  // namespace

const Family seed_oss_family{.architecture = "SeedOssForCausalLM",
                             .model_type = "seed_oss",
                             .names = llama_tensor_names(),
                             .read = read,
                             .kv_heads = 8,
                             .reads_dropout = true};

}  // namespace so
