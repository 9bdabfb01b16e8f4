// Qwen3ForCausalLM: Llama's shape with an explicit head size and RMSNorm on each query and key head.
#include "base/error.h"
#include "base/file.h"
#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

void read(ConfigReader& config, DecoderSpec& spec) {
  if (spec.head_dim == 0) spec.head_dim = 128;  // transformers' default for this class, whatever the hidden size
  spec.qk_norm = true;
  spec.tied_embeddings = config.boolean("tie_word_embeddings", false);
  if (config.boolean("use_sliding_window", false))
    config.refuse("use_sliding_window", "sliding-window attention is not supported for this architecture");
  for (const std::string& type : config.texts("layer_types"))
    if (type != "full_attention")
      config.refuse("layer_types", fmt::format("'{}' is not supported, only 'full_attention'", printable(type)));
}

}  // namespace

const Family qwen3_family{"Qwen3ForCausalLM", llama_tensor_names(), read};

}  // namespace so
