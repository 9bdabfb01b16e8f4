#include "io/presets.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "model/config.h"
#include "model/flops.h"
#include "model/parameters.h"
#include "support/errors.h"
#include "support/files.h"
#include "support/paths.h"

namespace so {
namespace {

struct Published {
  const char* name;
  std::int64_t parameters;  // as the model cards and the headers of the checkpoints count
  const char* architecture;
};
constexpr Published published[] = {
    {"gemma-3-1b", 999'885'952, "Gemma3ForCausalLM"},
    {"gemma-3-4b-text", 3'880'263'168, "Gemma3ForCausalLM"},
    {"gemma-4-26b-a4b", 25'233'141'790, "Gemma4ForCausalLM"},
    {"gemma-4-31b", 30'697'345'340, "Gemma4ForCausalLM"},
    {"gemma-4-e2b", 4'628'569'379, "Gemma4ForCausalLM"},
    {"gemma-4-e4b", 7'463'013'418, "Gemma4ForCausalLM"},
    {"glm-4-9b", 9'400'279'040, "Glm4ForCausalLM"},
    {"glm-4.7-flash", 29'943'390'976, "Glm4MoeLiteForCausalLM"},
    {"gpt-oss-20b", 20'914'757'184, "GptOssForCausalLM"},
    {"granite-3.3-8b", 8'170'864'640, "GraniteForCausalLM"},
    {"llama-2-13b-1m", 13'015'864'320, "LlamaForCausalLM"},
    {"llama-3.1-8b", 8'030'261'248, "LlamaForCausalLM"},
    {"llama-3.3-70b", 70'553'706'496, "LlamaForCausalLM"},
    {"ministral-3-14b", 13'506'073'600, "Ministral3ForCausalLM"},
    {"ministral-3-3b", 3'429'006'336, "Ministral3ForCausalLM"},
    {"ministral-3-8b", 8'489'553'920, "Ministral3ForCausalLM"},
    {"mixtral-8x7b", 46'702'792'704, "MixtralForCausalLM"},
    {"nemotron-3-nano-30b-a3b", 31'577'937'344, "NemotronHForCausalLM"},
    {"olmo-2-7b", 7'298'617'344, "Olmo2ForCausalLM"},
    {"olmo-3-7b", 7'298'011'136, "Olmo3ForCausalLM"},
    {"phi-4", 14'659'507'200, "Phi3ForCausalLM"},
    {"qwen3-0.6b", 596'049'920, "Qwen3ForCausalLM"},
    {"qwen3-14b", 14'768'307'200, "Qwen3ForCausalLM"},
    {"qwen3-30b-a3b", 30'532'122'624, "Qwen3MoeForCausalLM"},
    {"qwen3-32b", 32'762'123'264, "Qwen3ForCausalLM"},
    {"qwen3-4b", 4'022'468'096, "Qwen3ForCausalLM"},
    {"qwen3-8b", 8'190'735'360, "Qwen3ForCausalLM"},
    {"qwen3-next-80b-a3b", 79'674'391'296, "Qwen3NextForCausalLM"},
    {"qwen3.5-0.8b", 752'393'024, "Qwen3_5ForCausalLM"},
    {"qwen3.5-27b", 26'895'998'464, "Qwen3_5ForCausalLM"},
    {"qwen3.5-35b-a3b", 34'660'610'688, "Qwen3_5MoeForCausalLM"},
    {"qwen3.5-4b", 4'205'751'296, "Qwen3_5ForCausalLM"},
    {"qwen3.5-9b", 8'953'803'264, "Qwen3_5ForCausalLM"},
    {"seed-oss-36b", 36'151'104'512, "SeedOssForCausalLM"},
    {"smollm3-3b", 3'075'098'624, "SmolLM3ForCausalLM"},
};

TEST(Presets, HaveThePublishedNumberOfParameters) {
  ASSERT_EQ(model_presets().size(), std::size(published));
  for (std::size_t i = 0; i < std::size(published); ++i) {
    const Published& p = published[i];
    SCOPED_TRACE(p.name);
    EXPECT_EQ(model_presets()[i].name, p.name);
    const ModelConfig config = resolve_config(p.name);
    const DecoderSpec spec = read_decoder_spec(config.text, config.origin);
    EXPECT_EQ(spec.architecture, p.architecture);
    EXPECT_EQ(parameter_count(spec), p.parameters);
  }
}

TEST(Presets, AreWhatTheConfigFilesSay) {
  for (const auto& [folder, presets] : {std::pair{"models", model_presets()}, {"hardware", hardware_presets()}})
    for (const Preset& preset : presets) {
      std::ifstream in(std::filesystem::path(test::source_tree()) / "configs" / folder /
                       (std::string(preset.name) + ".json"));
      EXPECT_EQ(preset.json, std::string(std::istreambuf_iterator<char>(in), {})) << preset.name;
    }
}

TEST(Presets, WhatExistsWinsOverAPreset) {
  const test::TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "qwen3-4b");
  std::ofstream(directory / "qwen3-4b" / "config.json") << "{}";
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(directory.path());
  const ModelConfig config = resolve_config("qwen3-4b");
  std::filesystem::current_path(before);
  EXPECT_EQ(config.text, "{}");
  EXPECT_EQ(config.origin, "qwen3-4b/config.json");
}

TEST(Presets, AnUnknownNameListsThem) {
  test::expect_in(test::refusal([] { resolve_config("qwen4-1b"); }),
                  {"qwen4-1b", "no such file", "presets are", "qwen3-0.6b, qwen3-14b"});
}

}  // namespace
}  // namespace so
