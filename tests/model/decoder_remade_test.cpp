// Layers that keep nothing, not even their inputs, against the same decoder whose layers keep them: the same bits, in
// less memory, and weights in the order that is announced for them.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "model/decoder_rig.h"
#include "offload/schedule/pass_order.h"
#include "support/label.h"
#include "support/on_gpu.h"

namespace so {
namespace {

using test::DecoderRig;
using test::HostBatch;
using test::ModelFixture;
using test::Rig;
using test::StepResult;

constexpr std::int64_t layers = 7;

DecoderSettings settings_of(std::vector<Keep> keep, DType compute = DType::f32) {
  return {model_formats(compute), std::move(keep), 16};
}

std::vector<Keep> every_layer(Keep keep) { return std::vector(static_cast<std::size_t>(layers), keep); }

// Every `every`-th layer keeps this, from the first on, and the layers between nothing.
std::vector<Keep> spaced(std::int64_t every, Keep keep) {
  std::vector<Keep> all = every_layer(Keep::nothing);
  for (std::int64_t layer = 0; layer < layers; layer += every) all[static_cast<std::size_t>(layer)] = keep;
  return all;
}

// All families whose decoders differ, made deep by repeating their layers.
class RemadeTest : public testing::TestWithParam<const char*> {
 protected:
  DecoderRig rig(const DecoderSettings& settings) { return DecoderRig(cpu.stream(), cpu.ops(), fixture, settings); }

  Rig cpu;
  const ModelFixture fixture = ModelFixture::deep(GetParam(), layers);
  const HostBatch batch = HostBatch::join(std::span(fixture.documents).first(3));
};

SO_LABEL(sweep, test::covered_families("Models/RemadeTest.*/"));
SO_LABEL(no_asan, test::rearranged_families("Models/RemadeTest.*/"));
INSTANTIATE_TEST_SUITE_P(Models, RemadeTest,
                         testing::Values("llama-bias", "llama-v4", "mistral", "phi3-short", "qwen2", "qwen3-tied",
                                         "qwen3-moe", "qwen3-moe-balance", "mixtral-v4", "gpt-oss", "seed-oss",
                                         "smollm3-v4", "olmo2-v4", "olmo3", "granite-v4", "glm4-v4", "gemma3-v4",
                                         "ministral3", "qwen3-5", "qwen3-5-bias", "qwen3-5-moe", "qwen3-next", "gemma4",
                                         "gemma4-moe", "gemma4-vision", "gemma4-e", "glm4-moe-lite", "nemotron-h"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(RemadeTest, ChangesNoBit) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    const StepResult kept = rig(settings_of(every_layer(Keep::input), compute)).step(batch);
    // In runs of two and of three the last one is shorter; of eight it is the only one.
    for (const auto& [every, keep] : {std::pair{2, Keep::host}, {3, Keep::input}, {8, Keep::host}}) {
      SCOPED_TRACE(testing::Message() << name_of(compute) << ", every " << every << ": " << name_of(keep));
      auto decoder = rig(settings_of(spaced(every, keep), compute));
      const StepResult remade = decoder.step(batch);
      EXPECT_EQ(remade.losses, kept.losses);
      EXPECT_EQ(remade.gradients, kept.gradients);
      EXPECT_EQ(decoder.dry_high_water(), decoder.real_high_water());
    }
  }
}

// Runs of any length, between layers that keep more.
TEST_P(RemadeTest, GoesWithWhateverOtherLayersKeep) {
  const StepResult kept = rig(settings_of(every_layer(Keep::all))).step(batch);
  using K = Keep;
  for (const std::vector<Keep>& keep :
       {std::vector{K::nothing, K::nothing, K::all, K::nothing, K::light, K::attention, K::input},
        std::vector{K::host, K::nothing, K::input, K::nothing, K::nothing, K::host, K::all},
        std::vector{K::no_gate_up, K::nothing, K::attention, K::host, K::nothing, K::input, K::nothing}}) {
    const StepResult remade = rig(settings_of(keep)).step(batch);
    EXPECT_EQ(remade.losses, kept.losses);
    EXPECT_EQ(remade.gradients, kept.gradients);
  }
}

TEST_P(RemadeTest, GoesWithTilesAndMicroBatches) {
  const std::vector<HostBatch> parts{HostBatch::join(std::span(fixture.documents).first(1)), batch};
  DecoderSettings kept = settings_of(every_layer(Keep::input)), remade = settings_of(spaced(3, Keep::host));
  kept.tile_rows = remade.tile_rows = 7;
  auto decoder = rig(remade);
  const StepResult expected = rig(kept).step(parts, 0.25), found = decoder.step(parts, 0.25);
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.gradients, expected.gradients);
  EXPECT_EQ(decoder.dry_high_water(), decoder.real_high_water());
}

TEST_P(RemadeTest, UsesWeightsInTheOrderThatIsAnnounced) {
  for (const std::int64_t every : {2, 3, 8}) {
    auto decoder = rig(settings_of(spaced(every, Keep::input)));
    decoder.step(batch);
    const int units = fixture.layout.units();
    std::vector<int> expected;
    for (int unit = 0; unit < units; ++unit) expected.push_back(unit);
    for (const BackwardStep& step : backward_steps(units, 0, remade_inputs(spaced(every, Keep::input))))
      // Below the layers there are weights to go back through where layers have inputs beside the stream.
      if ((step.unit > 0 || fixture.spec.layer_input > 0) && step.unit + 1 < units) expected.push_back(step.unit);
    EXPECT_EQ(decoder.take_used_units(), expected) << every;
  }
}

TEST_P(RemadeTest, TakesLessMemory) {
  const auto bytes = [&](const std::vector<Keep>& keep) {
    auto decoder = rig(settings_of(keep));
    decoder.step(batch);
    return decoder.real_high_water();
  };
  // Of seven inputs there are four and one that runs share, or three and two; beside those on the host, two.
  const auto input = static_cast<std::size_t>(batch.tokens * fixture.spec.hidden) * sizeof(float);
  const std::size_t all = bytes(every_layer(Keep::input)), host = bytes(every_layer(Keep::host));
  const std::size_t slack = test::on_gpu() ? 1024 : 512;  // of alignment
  EXPECT_NEAR(static_cast<double>(all - bytes(spaced(2, Keep::input))), static_cast<double>(2 * input), slack);
  EXPECT_NEAR(static_cast<double>(all - bytes(spaced(3, Keep::input))), static_cast<double>(2 * input), slack);
  EXPECT_NEAR(static_cast<double>(bytes(spaced(3, Keep::host)) - host), static_cast<double>(2 * input), slack);
}

// The lowest layer that has a backward pass keeps its input, though it is asked to keep nothing.
TEST(RemadeInputs, BeginWhereTrainingDoes) {
  using K = Keep;
  EXPECT_EQ(kept_by_layer({}, 2, 0), (std::vector{K::all, K::all}));
  EXPECT_EQ(kept_by_layer({K::nothing, K::nothing, K::host}, 3, 0), (std::vector{K::input, K::nothing, K::host}));
  EXPECT_EQ(kept_by_layer({K::host, K::nothing, K::nothing, K::nothing}, 4, 3),
            (std::vector{K::input, K::input, K::input, K::nothing}));
  EXPECT_EQ(remade_inputs({K::input, K::host}), std::vector<bool>{});
  EXPECT_EQ(remade_inputs({K::input, K::nothing, K::nothing}), std::vector<bool>{}) << "they are there";
  EXPECT_EQ(remade_inputs({K::input, K::nothing, K::host, K::nothing}),
            (std::vector<bool>{false, false, true, false, false, false}));
  Rig cpu;
  for (const char* name : {"qwen3-untied-v4", "gpt-oss", "nemotron-h"})
    for (const std::vector<std::string>& frozen : {std::vector<std::string>{"*.embed*", "*.layers.0.*", "*.layers.1.*"},
                                                   std::vector<std::string>{"*.layers.4.*", "*norm.weight"}}) {
      const ModelFixture fixture = ModelFixture::deep(name, layers, {frozen});
      const HostBatch batch = HostBatch::join(fixture.batch());
      const auto step = [&](const std::vector<Keep>& keep) {
        return DecoderRig(cpu.stream(), cpu.ops(), fixture, settings_of(keep)).step(batch);
      };
      const StepResult kept = step(every_layer(Keep::input));
      for (const Keep keep : {Keep::input, Keep::host}) {
        const StepResult remade = step(spaced(3, keep));
        EXPECT_EQ(remade.losses, kept.losses);
        for (const Parameter& p : fixture.layout.parameters()) {
          if (!p.trained) continue;
          EXPECT_EQ(remade.gradients.at(p.name), kept.gradients.at(p.name)) << p.name;
        }
      }
    }
}

}  // namespace
}  // namespace so
