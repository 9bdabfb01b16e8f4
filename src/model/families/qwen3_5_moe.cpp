// Qwen3_5MoeForCausalLM: Qwen3.5 with a mixture of experts in place of every MLP, beside a shared expert with a gate.
// It is published inside Qwen3_5MoeForConditionalGeneration with its experts stacked. transformers writes them as it
// found them, and those of a new model one by one, as the models in FP8 have them.
#include <array>

#include "model/config.h"
#include "model/families/family.h"

namespace so {
namespace {

constexpr std::array<TextNames, 1> text_names{{{.model = "model.language_model.", .lm_head = "lm_head."}}};
constexpr std::array<std::string_view, 1> carried{"model.visual."};
constexpr std::array<Wrapper, 1> wrappers{{{.architecture = "Qwen3_5MoeForConditionalGeneration",
                                            .model_type = "qwen3_5_moe",
                                            .names = text_names,
                                            .carried = carried}}};

void read(ConfigReader& config, DecoderSpec& spec) {
  read_qwen3_5(config, spec);
  read_qwen_experts(config, spec, 256, 8);
  spec.experts.renormalized = spec.experts.stacked = true;
  // These are Qwen3-Next's, from which the class was made without them.
  constexpr auto as_in_transformers = "not supported for this architecture, as in transformers";
  if (!config.boolean("norm_topk_prob", true)) config.refuse("norm_topk_prob", "only true is supported");
  if (config.positive_int("decoder_sparse_step", 1) != 1) config.refuse("decoder_sparse_step", as_in_transformers);
  if (!config.whole_numbers("mlp_only_layers").empty()) config.refuse("mlp_only_layers", as_in_transformers);
  for (LayerSpec& layer : spec.layer_specs) layer.experts = true;
  spec.intermediate = spec.experts.intermediate;  // config.json has none, as no layer needs it
}

}  // namespace

void read_qwen_experts(const ConfigReader& config, DecoderSpec& spec, std::int64_t count, std::int64_t per_token) {
  ExpertSpec& e = spec.experts;
  e.count = config.positive_int("num_experts", count);
  e.per_token = config.positive_int("num_experts_per_tok", per_token);
  e.intermediate = config.positive_int("moe_intermediate_size", 512);
  e.shared_intermediate = config.positive_int("shared_expert_intermediate_size", 512);
  e.shared_gate = true;
  read_router_loss(config, spec);
}

const Family qwen3_5_moe_family{
    .architecture = "Qwen3_5MoeForCausalLM",
    .model_type = "qwen3_5_moe_text",
    .names = qwen3_5_tensor_names(),
    .read = read,
    .kv_heads = 2,
    .partial_rotary = true,
    .rotary_part = 0.25,
    .sizes = {.vocab = 248320, .hidden = 2048, .layers = 40, .heads = 16, .intermediate = 512, .positions = 32768},
    .wrappers = wrappers};

}  // namespace so
