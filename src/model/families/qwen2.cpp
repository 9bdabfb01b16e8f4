// Qwen2ForCausalLM: Qwen2 and Qwen2.5. Llama with biases on q, k and v.
#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

void read(ConfigReader& config, DecoderSpec& spec) {
  spec.qkv_bias = true;
  spec.o_bias = false;
  spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
  read_qwen_windows(config, spec);
}

}  // namespace

const Family qwen2_family{.architecture = "Qwen2ForCausalLM",
                          .model_type = "qwen2",
                          .names = llama_tensor_names(),
                          .read = read,
                          .kv_heads = 32};

}  // namespace so
