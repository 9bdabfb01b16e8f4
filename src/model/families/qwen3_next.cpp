// Qwen3NextForCausalLM: the layers of Qwen3.5's models with experts, which were made from it. The first products of a
// delta layer are sorted by key head, some layers may have an MLP, and experts are published one by one.
#include <algorithm>

#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

void read(ConfigReader& config, DecoderSpec& spec) {
  read_qwen3_5(config, spec);
  spec.delta.by_key_head = true;
  read_qwen_experts(config, spec, 512, 10);
  spec.experts.renormalized = config.boolean("norm_topk_prob", true);
  const std::int64_t step = config.positive_int("decoder_sparse_step", 1);
  const std::vector<std::int64_t> dense = config.whole_numbers("mlp_only_layers");
  for (std::int64_t layer = 0; layer < spec.layers; ++layer)
    spec.layer_specs[static_cast<std::size_t>(layer)].experts =
        (layer + 1) % step == 0 && std::find(dense.begin(), dense.end(), layer) == dense.end();
}

}  // namespace

const Family qwen3_next_family{
    .architecture = "Qwen3NextForCausalLM",
    .model_type = "qwen3_next",
    .names = qwen3_5_tensor_names(),
    .read = read,
    .kv_heads = 2,
    .partial_rotary = true,
    .rotary_part = 0.25,
    .sizes = {.vocab = 151936, .hidden = 2048, .layers = 48, .heads = 16, .intermediate = 5632, .positions = 32768}};

}  // namespace so
