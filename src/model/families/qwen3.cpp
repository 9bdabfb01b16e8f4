// Qwen3ForCausalLM: Llama's shape with an explicit head size and RMSNorm on each query and key head.
#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

void read(ConfigReader& config, DecoderSpec& spec) {
  if (spec.head_dim == 0) spec.head_dim = 128;  // transformers' default for this class, whatever the hidden size
  spec.qk_norm = true;
  spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
  read_qwen_windows(config, spec);
}

}  // namespace

const Family qwen3_family{.architecture = "Qwen3ForCausalLM",
                          .model_type = "qwen3",
                          .names = llama_tensor_names(),
                          .read = read,
                          .kv_heads = 32};

}  // namespace so
