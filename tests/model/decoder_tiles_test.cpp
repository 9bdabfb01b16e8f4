// The decoder in tiles of tokens against itself without them.
#include <gtest/gtest.h>

#include "base/dtype.h"
#include "model/decoder_rig.h"
#include "support/label.h"

namespace so {
namespace {

using test::DecoderRig;
using test::Document;
using test::expect_near_in_norm;
using test::HostBatch;
using test::ModelFixture;
using test::Rig;
using test::StepResult;

// Another order of the same fp32 sums, as in decoder_consistency_test.cpp: a matrix product of another number of rows,
// and a gradient that is the sum of its tiles'.
constexpr double tile_order = 1e-5;

class TilesTest : public testing::TestWithParam<const char*> {
 protected:
  DecoderSettings settings(std::int64_t tile_rows, Keep keep = Keep::input, DType compute = DType::f32) const {
    DecoderSettings s{model_formats(compute), std::vector(static_cast<std::size_t>(fixture.spec.layers), keep), 16};
    s.tile_rows = tile_rows;
    return s;
  }
  DecoderRig rig(const DecoderSettings& s) { return DecoderRig(cpu.stream(), cpu.ops(), fixture, s); }
  void expect_near(const StepResult& actual, const StepResult& expected, const std::string& what) {
    expect_near_in_norm(actual.losses, expected.losses, tile_order, what);
    for (const auto& [name, gradient] : expected.gradients) {
      if (test::norm(gradient) > 0)
        expect_near_in_norm(actual.gradients.at(name), gradient, tile_order, what + ": " + name);
      else  // an expert that no token chose
        EXPECT_EQ(actual.gradients.at(name), gradient) << what << ": " << name;
    }
  }

  Rig cpu;
  const ModelFixture fixture{GetParam()};
  const std::span<const Document> documents = std::span(fixture.documents).first(3);
  const HostBatch batch = HostBatch::join(documents);
};

SO_LABEL(sweep, test::covered_families("Models/TilesTest.*/"));
SO_LABEL(no_asan, test::rearranged_families("Models/TilesTest.*/"));
INSTANTIATE_TEST_SUITE_P(Models, TilesTest,
                         testing::Values("llama-bias", "qwen3-tied", "qwen3-moe", "qwen3-moe-balance", "gpt-oss",
                                         "smollm3-v4", "olmo3", "granite-v4", "glm4-v4", "gemma3-v4", "qwen3-5",
                                         "qwen3-5-moe", "qwen3-next", "gemma4", "gemma4-moe", "gemma4-e",
                                         "glm4-moe-lite", "nemotron-h"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(TilesTest, ChangeRoundingOnly) {
  const StepResult whole = rig(settings(0)).step(batch);
  const std::vector<float> losses = rig(settings(0)).losses(batch);
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{7}, batch.tokens - 1}) {
    const std::string what = std::to_string(rows) + " rows";
    for (const Keep keep : {Keep::light, Keep::no_gate_up, Keep::attention, Keep::input, Keep::host}) {
      auto tiled = rig(settings(rows, keep));
      expect_near(tiled.step(batch), whole, what);
      EXPECT_EQ(tiled.dry_high_water(), tiled.real_high_water()) << what;
      expect_near_in_norm(tiled.losses(batch), losses, tile_order, what + ", forward alone");
      EXPECT_EQ(tiled.dry_high_water(), tiled.real_high_water()) << what;
    }
  }
}

// A batch that is one tile takes the way of one without tiles, and so do layers that keep all.
TEST_P(TilesTest, ChangeNoBitWhereThereIsOne) {
  for (const DType compute : {DType::f32, DType::bf16})
    for (const std::int64_t rows : {batch.tokens, batch.tokens + 5}) {
      const StepResult whole = rig(settings(0, Keep::input, compute)).step(batch),
                       one = rig(settings(rows, Keep::input, compute)).step(batch);
      EXPECT_EQ(one.losses, whole.losses);
      EXPECT_EQ(one.gradients, whole.gradients);
    }
  const StepResult kept = rig(settings(0, Keep::all)).step(batch), same = rig(settings(5, Keep::all)).step(batch);
  EXPECT_EQ(same.losses, kept.losses);
  for (const auto& [name, gradient] : kept.gradients) {
    EXPECT_EQ(same.gradients.at(name), gradient) << name;
  }
}

TEST_P(TilesTest, RepeatToTheBit) {
  auto decoder = rig(settings(7));
  const StepResult first = decoder.step(batch), second = decoder.step(batch);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.gradients, second.gradients);
}

TEST_P(TilesTest, AddToTheGradientsOfOtherMicroBatches) {
  const double scale = 1.0 / static_cast<double>(batch.trained());
  const std::vector<HostBatch> parts{HostBatch::join(documents.first(1)), HostBatch::join(documents.last(2))};
  expect_near(rig(settings(5)).step(parts, scale), rig(settings(0)).step(parts, scale), "two micro-batches");
}

// Each tile's part of a gradient that is kept in bf16 would be rounded away if the sum were: of so many tiles the sum
// is that of fp32 gradients, rounded once.
TEST_P(TilesTest, RoundGradientsOnce) {
  auto decoder = rig(settings(1, Keep::input, DType::bf16));
  const StepResult wide = decoder.step(batch), narrow = decoder.step(batch, DType::bf16);
  EXPECT_EQ(narrow.losses, wide.losses);
  for (const auto& [name, gradient] : wide.gradients) {
    if (name.find(".layers.") == std::string::npos) continue;
    std::vector<float> rounded;
    for (const float value : gradient) rounded.push_back(static_cast<float>(bf16(value)));
    EXPECT_EQ(narrow.gradients.at(name), rounded) << name;
  }
}

TEST_P(TilesTest, TakeLessMemory) {
  auto whole = rig(settings(0, Keep::host)), tiled = rig(settings(4, Keep::host));
  whole.step(batch);
  tiled.step(batch);
  if (!test::on_gpu()) {
    EXPECT_LT(tiled.real_high_water(), whole.real_high_water());
  }
}

}  // namespace
}  // namespace so
