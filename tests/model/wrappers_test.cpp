// Text models inside models of text and more: their config.json, and the names that their tensors have in files.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/config.h"
#include "model/model_dtype.h"
#include "model/parameters.h"
#include "model/stored_names.h"
#include "support/errors.h"

namespace so {
namespace {

using nlohmann::json;

// As the model card's of Gemma 3 4B: most keys are left to the class's defaults.
json gemma3_4b() {
  return {{"architectures", {"Gemma3ForConditionalGeneration"}},
          {"model_type", "gemma3"},
          {"torch_dtype", "bfloat16"},
          {"mm_tokens_per_image", 256},
          {"text_config",
           {{"hidden_size", 2560},
            {"intermediate_size", 10240},
            {"model_type", "gemma3_text"},
            {"num_hidden_layers", 34},
            {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
            {"sliding_window", 1024}}},
          {"vision_config", {{"hidden_size", 1152}, {"model_type", "siglip_vision_model"}}}};
}

DecoderSpec read_wrapped(const json& config) { return read_decoder_spec(config.dump(), "config.json"); }

void expect_wrapped_refused(const json& config, const std::vector<std::string>& needles) {
  const std::string message = test::refusal([&] { read_wrapped(config); });
  EXPECT_EQ(message.find('\n'), message.npos) << message;
  test::expect_in(message, needles);
}

TEST(Wrappers, ReadsAPublishedGemma3) {
  const DecoderSpec spec = read_wrapped(gemma3_4b());
  EXPECT_EQ(spec.architecture, "Gemma3ForCausalLM");
  EXPECT_EQ(spec.wrapper, "Gemma3ForConditionalGeneration");
  EXPECT_EQ(spec.class_name(), "Gemma3ForConditionalGeneration");
  EXPECT_EQ(spec.vocab, 262208);
  EXPECT_EQ(spec.heads, 8);
  EXPECT_EQ(spec.kv_heads, 4);
  EXPECT_EQ(spec.head_dim, 256);
  EXPECT_EQ(spec.max_positions, 131072);
  EXPECT_EQ(spec.layer(0).window, 1024);
  EXPECT_EQ(spec.layer(5).window, 0);
  EXPECT_EQ(spec.rope.factor, 8);
  EXPECT_EQ(spec.local_rope->scaling, RopeScaling::none);
  EXPECT_TRUE(spec.tied_embeddings);
  EXPECT_TRUE(spec.remarks.empty());
  EXPECT_EQ(parameter_count(spec), 3'880'263'168);  // of the checkpoint's tensors under language_model
  // A text model by itself has the same defaults.
  json text = gemma3_4b().at("text_config");
  text["architectures"] = {"Gemma3ForCausalLM"};
  EXPECT_EQ(parameter_count(read_wrapped(text)), parameter_count(spec));
  EXPECT_EQ(read_wrapped(text).wrapper, "");
  // Neither does an empty text_config lack anything: it is transformers' Gemma3TextConfig().
  json empty = gemma3_4b();
  empty["text_config"] = json::object();
  EXPECT_EQ(read_wrapped(empty).layers, 26);
  EXPECT_EQ(read_wrapped(empty).hidden, 2304);
  EXPECT_EQ(read_wrapped(empty).intermediate, 9216);
}

// transformers ties by the key beside text_config; what is inside is written by it whatever is meant.
TEST(Wrappers, TiesAsTheKeyBesideTextConfigSays) {
  const auto tied = [](const json& beside, const json& inside) {
    json config = gemma3_4b();
    if (!beside.is_discarded()) config["tie_word_embeddings"] = beside;
    if (!inside.is_discarded()) config["text_config"]["tie_word_embeddings"] = inside;
    const DecoderSpec spec = read_wrapped(config);
    return std::pair(spec.tied_embeddings, spec.remarks.size());
  };
  const json none(json::value_t::discarded);
  EXPECT_EQ(tied(none, none), std::pair(true, std::size_t{0}));
  EXPECT_EQ(tied(none, false), std::pair(true, std::size_t{1}));
  EXPECT_EQ(tied(false, true), std::pair(false, std::size_t{1}));
  EXPECT_EQ(tied(false, none), std::pair(false, std::size_t{0}));
  EXPECT_EQ(tied(nullptr, none), std::pair(false, std::size_t{0}));
  EXPECT_EQ(tied(true, true), std::pair(true, std::size_t{0}));
  json config = gemma3_4b();
  config["tie_word_embeddings"] = false;
  config["text_config"]["tie_word_embeddings"] = true;
  EXPECT_EQ(read_wrapped(config).remarks,
            std::vector<std::string>{"config.json has tie_word_embeddings true in text_config; what counts for "
                                     "Gemma3ForConditionalGeneration is beside it, where it is false"});
}

TEST(Wrappers, TheStoredTypeMayStandInEitherPlace) {
  const auto dtype = [](const json& config) { return model_dtype({}, config.dump(), "config.json"); };
  json config = gemma3_4b();
  EXPECT_EQ(dtype(config), DType::bf16);
  config.erase("torch_dtype");
  EXPECT_EQ(dtype(config), DType::f32);
  EXPECT_TRUE(says_no_dtype(config.dump(), "config.json"));
  config["text_config"]["dtype"] = "bfloat16";
  EXPECT_EQ(dtype(config), DType::bf16);
  EXPECT_FALSE(says_no_dtype(config.dump(), "config.json"));
}

// As Ministral 3 is published; Mistral Small 3.1 and 3.2 have the same class around Mistral.
TEST(Wrappers, Mistral3HoldsEitherFamilyByItsType) {
  json config{{"architectures", {"Mistral3ForConditionalGeneration"}},
              {"model_type", "mistral3"},
              {"dtype", "bfloat16"},
              {"tie_word_embeddings", false},
              {"text_config",
               {{"model_type", "ministral3"},
                {"rope_parameters",
                 {{"type", "yarn"},
                  {"rope_theta", 1e6},
                  {"factor", 16.0},
                  {"original_max_position_embeddings", 16384},
                  {"llama_4_scaling_beta", 0.1}}}}},
              {"vision_config", {{"model_type", "pixtral"}}}};
  const DecoderSpec ministral = read_wrapped(config);
  EXPECT_EQ(ministral.architecture, "Ministral3ForCausalLM");
  EXPECT_EQ(ministral.wrapper, "Mistral3ForConditionalGeneration");
  EXPECT_EQ(parameter_count(ministral), 8'489'553'920);
  EXPECT_EQ(ministral.rope.query_growth, 0.1);
  EXPECT_FALSE(ministral.tied_embeddings);
  const std::vector<StoredNames> names = possible_names(ministral);
  EXPECT_EQ(names.at(0).stored("model.norm.weight"), "language_model.model.norm.weight");
  EXPECT_EQ(names.at(0).stored("lm_head.weight"), "language_model.lm_head.weight");
  EXPECT_EQ(names.at(1).stored("model.norm.weight"), "model.language_model.norm.weight");
  for (const StoredNames& one : names)
    for (const char* part : {"vision_tower.ln_pre.weight", "model.multi_modal_projector.norm.weight"})
      EXPECT_TRUE(one.carries(part)) << part;
  config.erase("tie_word_embeddings");
  EXPECT_TRUE(read_wrapped(config).tied_embeddings);

  config["text_config"] = {{"model_type", "mistral"},    {"vocab_size", 131072},
                           {"hidden_size", 5120},        {"num_hidden_layers", 40},
                           {"num_attention_heads", 32},  {"head_dim", 128},
                           {"intermediate_size", 32768}, {"rope_theta", 1000000000.0},
                           {"sliding_window", nullptr},  {"max_position_embeddings", 131072}};
  EXPECT_EQ(read_wrapped(config).architecture, "MistralForCausalLM");
  EXPECT_EQ(read_wrapped(config).rope.query_growth, 0);
  config["text_config"].erase("model_type");
  expect_wrapped_refused(config, {"text_config.model_type", "'mistral', 'ministral3'"});
}

TEST(Wrappers, WhatIsNoTextModelIsRefusedByName) {
  json config = gemma3_4b();
  config.erase("text_config");
  expect_wrapped_refused(config, {"config.json: text_config: missing", "Gemma3ForConditionalGeneration"});
  for (const json& wrong : {json(3), json("gemma3_text"), json::array(), json(true)}) {
    config["text_config"] = wrong;
    expect_wrapped_refused(config, {"config.json: text_config: expected an object"});
  }
  config["text_config"] = nullptr;
  expect_wrapped_refused(config, {"text_config: missing"});
  config = gemma3_4b();
  config["text_config"]["model_type"] = "llama";
  expect_wrapped_refused(
      config, {"text_config.model_type: 'llama' is no text model", "Gemma3ForConditionalGeneration", "'gemma3_text'"});
  config["text_config"]["model_type"] = 3;
  expect_wrapped_refused(config, {"text_config.model_type: expected a string"});
  config = gemma3_4b();
  config["model_type"] = "llava";
  expect_wrapped_refused(config, {"model_type: is 'llava'", "Gemma3ForConditionalGeneration", "'gemma3'"});
  config = gemma3_4b();
  config["text_config"]["hidden_size"] = -1;
  expect_wrapped_refused(config, {"text_config.hidden_size: expected a positive whole number"});
  config = gemma3_4b();
  config["text_config"]["num_hidden_layers"] = 1'000'000'000;
  expect_wrapped_refused(config, {"text_config.num_hidden_layers", "at most 1024"});
  for (const bool inside : {false, true}) {
    config = gemma3_4b();
    (inside ? config["text_config"] : config)["quantization_config"] = {{"quant_method", "bitsandbytes"}};
    expect_wrapped_refused(config, {"quantization_config", "unquantised"});
  }
  config = gemma3_4b();
  config["dtype"] = "float32";
  expect_wrapped_refused(config, {"torch_dtype: is 'bfloat16', but dtype is 'float32'"});
  expect_wrapped_refused({{"architectures", {"SomethingForConditionalGeneration"}}, {"text_config", json::object()}},
                         {"architectures", "is not supported; supported are", "Gemma3ForConditionalGeneration"});
}

TEST(Wrappers, NamesOfBothLayoutsGoThereAndBack) {
  const DecoderSpec spec = read_wrapped(gemma3_4b());
  const std::vector<StoredNames> all = possible_names(spec);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].stored("model.layers.3.mlp.up_proj.weight"), "language_model.model.layers.3.mlp.up_proj.weight");
  EXPECT_EQ(all[0].stored("lm_head.weight"), "language_model.lm_head.weight");
  EXPECT_EQ(all[1].stored("model.layers.3.mlp.up_proj.weight"), "model.language_model.layers.3.mlp.up_proj.weight");
  EXPECT_EQ(all[1].stored("lm_head.weight"), "lm_head.weight");
  for (const StoredNames& names : all) {
    for (const Parameter& p : make_parameters(spec)) {
      EXPECT_EQ(names.parameter(names.stored(p.name)), p.name);
      EXPECT_FALSE(names.carries(names.stored(p.name))) << p.name;
    }
    for (const char* part : {"vision_tower.x", "model.vision_tower.x", "multi_modal_projector.x", "mtp.layers.0.x"}) {
      EXPECT_TRUE(names.carries(part)) << part;
      EXPECT_EQ(names.parameter(part), "") << part;
    }
    for (const char* foreign : {"model.layers.0.mlp.up_proj.weight", "audio_tower.x", "model.audio_tower.x", ""}) {
      EXPECT_FALSE(names.carries(foreign)) << foreign;
      EXPECT_EQ(names.parameter(foreign), "") << foreign;
    }
    const auto found = names_in_files(
        spec, [&](std::string_view name) { return name == names.stored("model.embed_tokens.weight"); }, "DIR");
    EXPECT_EQ(found.stored("lm_head.weight"), names.stored("lm_head.weight"));
  }
  EXPECT_EQ(test::refusal([&] {
              names_in_files(
                  spec, [](std::string_view) { return false; }, "DIR");
            }),
            "DIR: there is no tensor 'language_model.model.embed_tokens.weight' or "
            "'model.language_model.embed_tokens.weight', by which the text model of Gemma3ForConditionalGeneration "
            "would be found");
  // By itself a model has its family's names, and no other parts.
  const StoredNames own;
  EXPECT_EQ(own.parameter("anything"), "anything");
  EXPECT_EQ(own.stored("model.norm.weight"), "model.norm.weight");
  EXPECT_FALSE(own.carries("vision_tower.x"));
  EXPECT_TRUE(own.carries("mtp.norm.weight"));
}

// A run may name parameters as its files do, or as the text family does.
TEST(Wrappers, PatternsMatchByEitherName) {
  const DecoderSpec spec = read_wrapped(gemma3_4b());
  for (const char* pattern :
       {"model.layers.0.*", "language_model.model.layers.0.*", "model.language_model.layers.0.*"}) {
    int frozen = 0;
    for (const Parameter& p : make_parameters(spec, {.frozen = {pattern}})) {
      EXPECT_EQ(!p.trained, p.name.starts_with("model.layers.0.")) << pattern << ' ' << p.name;
      frozen += !p.trained;
    }
    EXPECT_EQ(frozen, 13) << pattern;
  }
  for (const char* head : {"lm_head.weight", "language_model.lm_head.weight"})
    EXPECT_FALSE(make_parameters(spec, {.frozen = {head}}).front().trained) << head;
  test::expect_in(test::refusal([&] { make_parameters(spec, {.frozen = {"vision_tower.*"}}); }),
                  {"--freeze vision_tower.*", "no parameter of the model has such a name"});
}

}  // namespace
}  // namespace so
