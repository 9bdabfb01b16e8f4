// The decoder with frozen parameters: what is trained has the gradient that it has otherwise, to the bit, and nothing
// else is computed.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "model/decoder_rig.h"
#include "model/flops.h"
#include "support/label.h"

namespace so {
namespace {

using test::DecoderRig;
using test::HostBatch;
using test::ModelFixture;
using test::Rig;
using test::StepResult;

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

StepResult step_of(Rig& cpu, const ModelFixture& fixture, Keep keep, std::size_t* memory = nullptr) {
  DecoderSettings settings{model_formats(DType::f32), {}, 16};
  settings.keep.assign(static_cast<std::size_t>(fixture.spec.layers), keep);
  DecoderRig rig(cpu.stream(), cpu.ops(), fixture, settings);
  StepResult result = rig.step(HostBatch::join(fixture.batch()));
  EXPECT_EQ(rig.real_high_water(), rig.dry_high_water());
  if (memory) *memory = rig.real_high_water();
  return result;
}

void expect_same_where_trained(const char* name, const ParameterRules& rules) {
  Rig cpu{1};
  const ModelFixture all(name), some(name, rules);
  EXPECT_TRUE(some.layout.has_frozen());
  for (const Keep keep : {Keep::all, Keep::input, Keep::host}) {
    SCOPED_TRACE(testing::Message() << name << ", " << rules.frozen.front() << ", keeps " << name_of(keep));
    std::size_t memory_of_all = 0, memory = 0;
    const StepResult expected = step_of(cpu, all, keep, &memory_of_all), found = step_of(cpu, some, keep, &memory);
    EXPECT_EQ(found.losses, expected.losses);
    for (const Parameter& p : some.layout.parameters()) {
      if (!found.gradients.contains(p.name)) continue;
      const std::vector<float>& gradient = found.gradients.at(p.name);
      if (p.trained) {
        EXPECT_EQ(gradient, expected.gradients.at(p.name)) << p.name;
      } else {  // nothing was written where all began as NaN
        EXPECT_TRUE(std::all_of(gradient.begin(), gradient.end(), [](float g) { return std::isnan(g); })) << p.name;
      }
    }
    // Layers below the first trained one keep nothing.
    if (keep == Keep::all && some.layout.first_trained_unit() > 2) {
      EXPECT_LT(memory, memory_of_all);
    }
  }
}

SO_LABEL(sweep, "FrozenDecoder.GradientsOfTheOthersAreTheSame");
TEST(FrozenDecoder, GradientsOfTheOthersAreTheSame) {
  for (const char* name :
       {"qwen3-tied", "qwen3-untied-v4", "llama-bias", "phi3-short", "qwen3-moe", "gpt-oss", "gemma3-v4", "olmo2-v4",
        "granite-v4", "glm4-v4", "qwen3-5-bias", "gemma4", "gemma4-vision", "gemma4-moe", "gemma4-e"}) {
    expect_same_where_trained(name, {{"model.embed_tokens.weight", "model.layers.0.*"}});
    expect_same_where_trained(name, {{"*norm.weight"}});
    expect_same_where_trained(name, {{"*.self_attn.*"}});
    expect_same_where_trained(name, {{"*.mlp.*"}});
    expect_same_where_trained(name, {{"lm_head.weight", "model.norm.weight"}});
    expect_same_where_trained(name, {{"model.embed_tokens.weight", "model.layers.*"}});
  }
  expect_same_where_trained("mistral", {{"model.layers.?.mlp.down_proj.weight", "*.o_proj.weight"}});
}

TEST(FrozenDecoder, FlopsOfWhatIsNotComputedDoNotCount) {
  const std::vector<std::int32_t> documents{0, 20, 50};
  const auto flops = [&](const ParameterRules& rules) {
    const ModelFixture fixture("qwen3-untied-v4", rules);
    return unit_flops(fixture.spec, documents, unit_backward(fixture.spec, fixture.layout));
  };
  const auto all = flops({}), mlp = flops({{"*.mlp.*"}}), low = flops({{"model.embed_tokens.*", "model.layers.0.*"}}),
             head = flops({{"lm_head.weight"}});
  for (std::size_t unit = 0; unit < all.size(); ++unit) {
    EXPECT_EQ(mlp[unit].forward, all[unit].forward);
    EXPECT_EQ(all[unit].backward, 2 * all[unit].forward);
  }
  const DecoderSpec& spec = ModelFixture("qwen3-untied-v4").spec;
  const double mlp_products = 2 * 50.0 * 3 * static_cast<double>(spec.hidden * spec.intermediate);
  EXPECT_NEAR(all[1].backward - mlp[1].backward, mlp_products, 1e-6 * mlp_products);
  EXPECT_EQ(low[1].backward, 0) << "nothing below it is trained";
  EXPECT_EQ(low[2].backward, all[2].backward);
  EXPECT_EQ(head.back().backward, head.back().forward) << "only the gradient of its input";
}

TEST(ParameterRules, NamesArePatterns) {
  EXPECT_EQ(parse_patterns("a.*, b ,c", "--freeze"), (std::vector<std::string>{"a.*", "b", "c"}));
  for (const char* wrong : {"", "a,", ",a", "a,,b"})
    EXPECT_NE(error_of([&] { parse_patterns(wrong, "--freeze"); }).find("--freeze"), std::string::npos);
  const auto frozen = [](std::vector<std::string> patterns, const char* model = "qwen3-tied") {
    std::vector<std::string> names;
    const ModelFixture fixture(model, {std::move(patterns)});
    for (const Parameter& p : fixture.layout.parameters())
      if (!p.trained) names.push_back(p.name);
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(frozen({"lm_head.weight"}), Names{"model.embed_tokens.weight"}) << "its other name";
  EXPECT_EQ(frozen({"lm_head.weight"}, "qwen3-untied-v4"), Names{"lm_head.weight"});
  EXPECT_EQ(frozen({"model.layers.[0]*.q_norm.weight"}), Names{"model.layers.0.self_attn.q_norm.weight"});
  EXPECT_EQ(frozen({"model.norm.weigh?"}), Names{"model.norm.weight"});
  const auto refused = [&](std::vector<std::string> patterns) {
    return error_of([&] { frozen(std::move(patterns)); });
  };
  EXPECT_NE(refused({"model.norm.weight", "model.nor"}).find("--freeze model.nor: no parameter"), std::string::npos)
      << "whole names";
  EXPECT_NE(refused({"model.*"}).find("nothing trained"), std::string::npos);
}

TEST(ParameterRules, LrMultipliers) {
  const auto parsed = parse_lr_multipliers("a.*=0.1, b=3e2 ,c=d=1", "--lr_multiplier");
  ASSERT_EQ(parsed.size(), 3u);
  EXPECT_EQ(parsed[0].pattern, "a.*");
  EXPECT_EQ(parsed[0].factor, 0.1);
  EXPECT_EQ(parsed[1].factor, 300);
  EXPECT_EQ(parsed[2].pattern, "c=d");
  const auto unread = [&](const char* text) {
    return error_of([&] { parse_lr_multipliers(text, "--lr_multiplier"); });
  };
  for (const char* wrong : {"", "a", "=1", "a=", "a=x", "a=1x", "a=-1", "a=nan", "a=inf", "a=1e7", "a=1e-7", "a=1,"})
    EXPECT_NE(unread(wrong).find("--lr_multiplier"), std::string::npos) << wrong;
  EXPECT_NE(unread("b=1,a.*=0").find("--freeze 'a.*'"), std::string::npos);

  using Factors = std::map<std::string, double>;
  const auto factors = [](const char* multipliers, std::vector<std::string> frozen = {},
                          const char* model = "qwen3-tied") {
    Factors others;
    const ModelFixture fixture(model, {std::move(frozen), parse_lr_multipliers(multipliers, "--lr_multiplier")});
    for (const Parameter& p : fixture.layout.parameters())
      if (p.lr_multiplier != 1) others.emplace(p.name, p.lr_multiplier);
    return others;
  };
  EXPECT_EQ(factors("lm_head.weight=0.5"), (Factors{{"model.embed_tokens.weight", 0.5}})) << "its other name";
  EXPECT_EQ(factors("lm_head.weight=0.5", {}, "qwen3-untied-v4"), (Factors{{"lm_head.weight", 0.5}}));
  EXPECT_EQ(factors("model.layers.0.*.k_proj.weight=2,*.[0]*.k_*=3,model.norm.*=1,*norm.weight=4,*=1"),
            (Factors{{"model.layers.0.self_attn.k_proj.weight", 2},
                     {"model.layers.0.self_attn.k_norm.weight", 3},
                     {"model.layers.0.self_attn.q_norm.weight", 4},
                     {"model.layers.1.self_attn.q_norm.weight", 4},
                     {"model.layers.1.self_attn.k_norm.weight", 4},
                     {"model.layers.0.input_layernorm.weight", 4},
                     {"model.layers.1.input_layernorm.weight", 4},
                     {"model.layers.0.post_attention_layernorm.weight", 4},
                     {"model.layers.1.post_attention_layernorm.weight", 4}}))
      << "the first that matches";
  EXPECT_EQ(
      factors("model.layers.1.*norm.weight=2", {"model.layers.?.*_norm.weight"}),
      (Factors{{"model.layers.1.input_layernorm.weight", 2}, {"model.layers.1.post_attention_layernorm.weight", 2}}));
  const auto refused = [&](const char* multipliers, std::vector<std::string> frozen = {}) {
    return error_of([&] { factors(multipliers, std::move(frozen)); });
  };
  EXPECT_NE(refused("model.norm.*=2,model.nor=3").find("--lr_multiplier model.nor: no parameter"), std::string::npos);
  EXPECT_NE(refused("lm_head.*=2", {"model.embed_tokens.*"}).find("--lr_multiplier lm_head.*: --freeze"),
            std::string::npos);
  EXPECT_NE(refused("*norm.*=2,model.norm.*=3").find("--lr_multiplier model.norm.*: patterns before it"),
            std::string::npos);
}

}  // namespace
}  // namespace so
