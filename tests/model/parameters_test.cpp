#include "model/parameters.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <tuple>

#include "base/error.h"
#include "model/config.h"
#include "model/flops.h"
#include "support/paths.h"
#include "support/safetensors_reader.h"
#include "support/text_tensors.h"

namespace so {
namespace {

DecoderSpec small_spec(const char* architecture) {
  DecoderSpec s;
  s.architecture = architecture;
  s.vocab = 10, s.hidden = 4, s.layers = 2, s.heads = 2, s.kv_heads = 1, s.head_dim = 6, s.intermediate = 5;
  s.rope.rotary_dim = 6;
  return s;
}

// transformers wrote these directories: its names and shapes, nothing more and nothing less.
TEST(Parameters, NamesAndShapesAreThoseOfTransformers) {
  int models = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(test::fixtures()) / "models")) {
    const auto directory = entry.path() / "model";
    if (!std::filesystem::exists(directory)) continue;
    std::map<std::string, std::vector<std::int64_t>> stored, ours;
    const DecoderSpec spec = read_decoder_spec(directory / "config.json");
    for (const auto& [name, tensor] : test::text_tensors(spec, test::read_model_weights(directory)))
      stored[name] = tensor.shape;
    for (const Parameter& p : make_parameters(spec)) ours[p.name] = p.shape;
    EXPECT_EQ(ours, stored) << directory;
    ++models;
  }
  EXPECT_GE(models, 8);
}

// Forward order; what is joined to its predecessor; which unit first uses it; what decays.
TEST(Parameters, OrderUnitsAndDecayOfALlamaWithBiases) {
  DecoderSpec spec = small_spec("LlamaForCausalLM");
  spec.layers = 1;
  spec.qkv_bias = spec.o_bias = spec.mlp_bias = true;
  using Shape = std::vector<std::int64_t>;
  struct Row {
    const char* name;
    Shape shape;
    int unit;
    bool decay, joined;
  };
  const std::string layer = "model.layers.0.";
  const std::vector<Row> rows{
      {"model.embed_tokens.weight", {10, 4}, 0, true, false},
      {"model.layers.0.input_layernorm.weight", {4}, 1, false, false},
      {"model.layers.0.self_attn.q_proj.weight", {12, 4}, 1, true, false},
      {"model.layers.0.self_attn.k_proj.weight", {6, 4}, 1, true, true},
      {"model.layers.0.self_attn.v_proj.weight", {6, 4}, 1, true, true},
      {"model.layers.0.self_attn.q_proj.bias", {12}, 1, false, false},
      {"model.layers.0.self_attn.k_proj.bias", {6}, 1, false, true},
      {"model.layers.0.self_attn.v_proj.bias", {6}, 1, false, true},
      {"model.layers.0.self_attn.o_proj.weight", {4, 12}, 1, true, false},
      {"model.layers.0.self_attn.o_proj.bias", {4}, 1, false, false},
      {"model.layers.0.post_attention_layernorm.weight", {4}, 1, false, false},
      {"model.layers.0.mlp.gate_proj.weight", {5, 4}, 1, true, false},
      {"model.layers.0.mlp.up_proj.weight", {5, 4}, 1, true, true},
      {"model.layers.0.mlp.gate_proj.bias", {5}, 1, false, false},
      {"model.layers.0.mlp.up_proj.bias", {5}, 1, false, true},
      {"model.layers.0.mlp.down_proj.weight", {4, 5}, 1, true, false},
      {"model.layers.0.mlp.down_proj.bias", {4}, 1, false, false},
      {"model.norm.weight", {4}, 2, false, false},
      {"lm_head.weight", {10, 4}, 2, true, false},
  };
  const auto parameters = make_parameters(spec);
  ASSERT_EQ(parameters.size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Parameter& p = parameters[i];
    EXPECT_EQ(p.name, rows[i].name);
    EXPECT_EQ(p.shape, rows[i].shape) << p.name;
    EXPECT_EQ(p.unit, rows[i].unit) << p.name;
    EXPECT_EQ(p.decay, rows[i].decay) << p.name;
    EXPECT_EQ(p.joined, rows[i].joined) << p.name;
  }
}

// Of transformers' get_decay_parameter_names(): no name with "bias" or a norm decays, and all others do.
TEST(Parameters, DecayOfADeltaLayerIsThatOfTransformers) {
  DecoderSpec spec = small_spec("Qwen3_5ForCausalLM");
  spec.delta = {.k_heads = 2, .v_heads = 4, .k_dim = 3, .v_dim = 5, .convolution = 4};
  spec.layer_specs = {{.mixer = TokenMixer::gated_delta}, {}};
  spec.qk_norm = spec.output_gate = spec.qkv_bias = true;
  std::map<std::string, Parameter> by_name;
  for (const Parameter& p : make_parameters(spec)) by_name[p.name] = p;
  const std::string delta = "model.layers.0.linear_attn.", attention = "model.layers.1.self_attn.";
  for (const char* name : {"in_proj_qkv.weight", "in_proj_z.weight", "in_proj_b.weight", "in_proj_a.weight",
                           "conv1d.weight", "A_log", "out_proj.weight"})
    EXPECT_TRUE(by_name.at(delta + name).decay) << name;
  for (const char* name : {"dt_bias", "norm.weight"}) EXPECT_FALSE(by_name.at(delta + name).decay) << name;
  EXPECT_EQ(by_name.at(delta + "conv1d.weight").shape, (std::vector<std::int64_t>{32, 1, 4}));
  EXPECT_EQ(by_name.at(attention + "q_proj.weight").shape, (std::vector<std::int64_t>{24, 4}));
  EXPECT_EQ(by_name.at(attention + "q_proj.bias").shape, (std::vector<std::int64_t>{24}));
  EXPECT_FALSE(by_name.contains("model.layers.0.self_attn.q_proj.weight"));
  EXPECT_FALSE(by_name.contains("model.layers.1.linear_attn.A_log"));
  // The four projections of a delta layer read as one matrix.
  const ParameterLayout layout(make_parameters(spec));
  const ParameterIndex::Layer layer = make_parameter_index(spec, layout).layers[0];
  std::vector<float> weights(static_cast<std::size_t>(layout.elements()));
  EXPECT_EQ(layout.view(weights.data(), DType::f32, layer.qkv.first, layer.qkv.count).dim(0),
            spec.delta.projected_width());
}

TEST(Parameters, TheIndexFindsEverything) {
  for (const char* architecture : {"LlamaForCausalLM", "Qwen3ForCausalLM"}) {
    for (const bool everything : {false, true}) {
      DecoderSpec spec = small_spec(architecture);
      spec.qkv_bias = spec.o_bias = spec.mlp_bias = spec.qk_norm = everything;
      spec.tied_embeddings = !everything;
      const ParameterLayout layout(make_parameters(spec));
      const ParameterIndex index = make_parameter_index(spec, layout);
      std::vector<float> weights(static_cast<std::size_t>(layout.elements()));
      const auto name = [&](int i) { return i < 0 ? std::string("absent") : layout.parameter(i).name; };
      EXPECT_EQ(name(index.embedding), "model.embed_tokens.weight");
      EXPECT_EQ(name(index.final_norm), "model.norm.weight");
      EXPECT_EQ(name(index.lm_head), everything ? "lm_head.weight" : "model.embed_tokens.weight");
      ASSERT_EQ(index.layers.size(), 2u);
      for (std::size_t l = 0; l < 2; ++l) {
        const std::string layer = "model.layers." + std::to_string(l) + ".";
        const auto optional = [&](const std::string& tail) {
          return everything ? layer + tail : std::string("absent");
        };
        const ParameterIndex::Layer& p = index.layers[l];
        EXPECT_EQ(name(p.input_norm.first), layer + "input_layernorm.weight");
        EXPECT_EQ(name(p.qkv.first), layer + "self_attn.q_proj.weight");
        EXPECT_EQ(name(p.qkv_bias.first), optional("self_attn.q_proj.bias"));
        EXPECT_EQ(name(p.q_norm.first), optional("self_attn.q_norm.weight"));
        EXPECT_EQ(name(p.k_norm.first), optional("self_attn.k_norm.weight"));
        EXPECT_EQ(name(p.o.first), layer + "self_attn.o_proj.weight");
        EXPECT_EQ(name(p.o_bias.first), optional("self_attn.o_proj.bias"));
        EXPECT_EQ(name(p.mlp_norm.first), layer + "post_attention_layernorm.weight");
        EXPECT_EQ(name(p.gate_up.first), layer + "mlp.gate_proj.weight");
        EXPECT_EQ(name(p.gate_up_bias.first), optional("mlp.gate_proj.bias"));
        EXPECT_EQ(name(p.down.first), layer + "mlp.down_proj.weight");
        EXPECT_EQ(name(p.down_bias.first), optional("mlp.down_proj.bias"));
        // The joined groups read as one matrix.
        EXPECT_EQ(layout.view(weights.data(), DType::f32, p.qkv.first, p.qkv.count).dim(0), 24);
        EXPECT_EQ(layout.view(weights.data(), DType::f32, p.gate_up.first, p.gate_up.count).dim(0), 10);
        if (!everything) continue;
        EXPECT_EQ(layout.view(weights.data(), DType::f32, p.qkv_bias.first, p.qkv_bias.count).dim(0), 24);
        EXPECT_EQ(layout.view(weights.data(), DType::f32, p.gate_up_bias.first, p.gate_up_bias.count).dim(0), 10);
      }
    }
  }
}

TEST(Parameters, MatmulParameters) {
  // A layer: qkv 24 x 4, o 4 x 12, gate, up and down 3 x 5 x 4: 204. Head 10 x 4, tied or not.
  DecoderSpec spec = small_spec("LlamaForCausalLM");
  EXPECT_EQ(matmul_parameters(spec), 2 * 204 + 40);
  spec.tied_embeddings = spec.qkv_bias = spec.o_bias = spec.mlp_bias = spec.qk_norm = true;
  EXPECT_EQ(matmul_parameters(spec), 2 * 204 + 40);
}

TEST(Parameters, UnknownFamiliesAreRefusedWithTheKnownOnes) {
  EXPECT_EQ(find_family("Qwen3ForCausalLM").architecture, "Qwen3ForCausalLM");
  try {
    find_family("GPT2LMHeadModel");
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "architecture 'GPT2LMHeadModel' is not supported; supported are LlamaForCausalLM, MistralForCausalLM, "
                 "Phi3ForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM, SeedOssForCausalLM, "
                 "GptOssForCausalLM, MixtralForCausalLM"
                 ", SmolLM3ForCausalLM"
                 ", Olmo2ForCausalLM"
                 ", Olmo3ForCausalLM"
                 ", GraniteForCausalLM"
                 ", Glm4ForCausalLM"
                 ", Gemma3ForCausalLM"
                 ", Ministral3ForCausalLM"
                 ", Qwen3_5ForCausalLM"
                 ", Qwen3_5MoeForCausalLM"
                 ", Qwen3NextForCausalLM"
                 ", Gemma4ForCausalLM"
                 ", Glm4MoeLiteForCausalLM"
                 ", NemotronHForCausalLM"
                 ", Mistral3ForConditionalGeneration"
                 ", Gemma3ForConditionalGeneration"
                 ", Qwen3_5ForConditionalGeneration"
                 ", Qwen3_5MoeForConditionalGeneration"
                 ", Gemma4ForConditionalGeneration");
  }
}

}  // namespace
}  // namespace so
