// The decoder against itself: what must not depend on how a step is cut, kept or packed.
#include <gtest/gtest.h>

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

// Another order of the same fp32 sums: as for decoder_test.cpp.
constexpr double fp32_order = 1e-5;

DecoderSettings settings(DType compute = DType::f32, std::vector<Keep> keep = {}, std::int64_t loss_chunk_rows = 16) {
  return {model_formats(compute), std::move(keep), loss_chunk_rows};
}

// Qwen3: norms on q and k, tied. Llama: rotation in place, biases, a head of its own. With experts: one model with a
// dense layer between, and one with windows, sinks and biases everywhere. OLMo: norms of what blocks add and of whole
// projections, none of what blocks read. Granite: every multiplier. Gemma: norms before and after, two rotations.
// Qwen3.5: gated delta layers, and attention with a gate.
class ConsistencyTest : public testing::TestWithParam<const char*> {
 protected:
  std::vector<Keep> every(Keep keep) const { return std::vector(static_cast<std::size_t>(fixture.spec.layers), keep); }
  DecoderRig rig(const DecoderSettings& s) { return DecoderRig(cpu.stream(), cpu.ops(), fixture, s); }

  void expect_near(const StepResult& actual, const StepResult& expected, const std::string& what) {
    for (const auto& [name, gradient] : expected.gradients)
      expect_near_in_norm(actual.gradients.at(name), gradient, fp32_order, what + ": " + name);
  }

  Rig cpu;
  const ModelFixture fixture{GetParam()};
  const std::span<const Document> documents = std::span(fixture.documents).first(3);
  const HostBatch batch = HostBatch::join(documents);
};

SO_LABEL(sweep, test::covered_families("Models/ConsistencyTest.*/"));
SO_LABEL(no_asan, test::rearranged_families("Models/ConsistencyTest.*/"));
INSTANTIATE_TEST_SUITE_P(Models, ConsistencyTest,
                         testing::Values("llama-bias", "qwen3-tied", "qwen3-moe", "gpt-oss", "smollm3-v4", "olmo3",
                                         "granite-v4", "glm4-v4", "gemma3-v4", "ministral3", "qwen3-5", "qwen3-5-bias",
                                         "qwen3-5-moe", "qwen3-next", "gemma4", "gemma4-moe", "gemma4-e",
                                         "glm4-moe-lite", "nemotron-h"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

constexpr Keep all_keeps[] = {Keep::all, Keep::light, Keep::no_gate_up, Keep::attention, Keep::input, Keep::host};

// Whatever each of the layers keeps, in any mixture.
TEST_P(ConsistencyTest, RecomputationChangesNoBit) {
  const auto layers = static_cast<std::size_t>(fixture.spec.layers);
  ASSERT_GE(layers, 2u);
  std::vector<std::vector<Keep>> choices;
  for (std::size_t shift = 0; shift < std::size(all_keeps); ++shift) {
    choices.push_back(every(all_keeps[shift]));
    choices.push_back(every(Keep::all));
    for (std::size_t i = 0; i < layers; ++i) choices.back()[i] = all_keeps[(i + shift) % std::size(all_keeps)];
  }
  for (const DType compute : {DType::f32, DType::bf16}) {
    const StepResult kept = rig(settings(compute)).step(batch);
    for (const auto& keep : choices) {
      const std::string what = std::string(name_of(keep.front())) + " to " + std::string(name_of(keep.back()));
      const StepResult recomputed = rig(settings(compute, keep)).step(batch);
      EXPECT_EQ(recomputed.losses, kept.losses) << name_of(compute) << ' ' << what;
      EXPECT_EQ(recomputed.gradients, kept.gradients) << name_of(compute) << ' ' << what;
    }
  }
}

TEST_P(ConsistencyTest, TheNumberOfThreadsChangesNoBit) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    const StepResult two = rig(settings(compute)).step(batch);
    for (const int threads : {1, 3}) {
      Rig other(threads);
      const StepResult step = DecoderRig(other.stream(), other.ops(), fixture, settings(compute)).step(batch);
      EXPECT_EQ(step.losses, two.losses) << threads << " threads, " << name_of(compute);
      EXPECT_EQ(step.gradients, two.gradients) << threads << " threads, " << name_of(compute);
    }
  }
}

TEST_P(ConsistencyTest, AStepRepeatsToTheBit) {
  auto decoder = rig(settings());
  const StepResult first = decoder.step(batch), second = decoder.step(batch);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.gradients, second.gradients);
}

// A matrix product may sum in another order for another number of rows, so this holds to rounding, not to the bit.
TEST_P(ConsistencyTest, TheChunkOfTheLossChangesRoundingOnly) {
  const StepResult whole = rig(settings(DType::f32, {}, batch.tokens)).step(batch);
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{7}, batch.tokens - 1, batch.tokens + 5}) {
    const StepResult chunked = rig(settings(DType::f32, {}, rows)).step(batch);
    expect_near_in_norm(chunked.losses, whole.losses, fp32_order, std::to_string(rows) + " rows");
    expect_near(chunked, whole, std::to_string(rows) + " rows");
  }
}

TEST_P(ConsistencyTest, MicroBatchesAddUpToTheirJoin) {
  if (fixture.spec.experts.balance > 0) return;  // the routers' loss of a batch is not the sum of its parts'
  auto decoder = rig(settings());
  const double scale = 1.0 / static_cast<double>(batch.trained());
  const StepResult joint = decoder.step(batch);
  for (const Keep keep : all_keeps) {
    const StepResult parts =
        rig(settings(DType::f32, every(keep)))
            .step({HostBatch::join(documents.first(1)), HostBatch::join(documents.last(2))}, scale);
    expect_near(parts, joint, std::string(name_of(keep)));
    ASSERT_EQ(parts.losses.size(), joint.losses.size());
    expect_near_in_norm(parts.losses, joint.losses, fp32_order, "losses");
  }
}

TEST_P(ConsistencyTest, TheScaleOfTheLossIsTheScaleOfTheGradients) {
  auto decoder = rig(settings());
  // A power of two, so every product and sum scales exactly: nothing here is near the ends of fp32's range.
  const StepResult one = decoder.step({batch}, 0x1p-5), eight = decoder.step({batch}, 0x1p-2);
  EXPECT_EQ(one.losses, eight.losses);
  for (const auto& [name, gradient] : one.gradients) {
    std::vector<float> scaled = gradient;
    for (float& value : scaled) value *= 8;
    EXPECT_EQ(eight.gradients.at(name), scaled) << name;
  }
}

TEST_P(ConsistencyTest, DocumentsGiveTheSameLogitsTogetherAsAlone) {
  // A document of one token too, which attends to itself only.
  std::vector<Document> list(documents.begin(), documents.end());
  list.insert(list.begin() + 1, Document{{5}, {5}});
  auto decoder = rig(settings());
  const HostBatch together = HostBatch::join(list);
  const std::vector<float> logits = decoder.logits(together);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::vector<float> alone = decoder.logits(HostBatch::join(std::span(list).subspan(i, 1)));
    const auto begin = static_cast<std::int64_t>(together.offsets[i]);
    expect_near_in_norm(test::rows_of(logits, begin, static_cast<std::int64_t>(list[i].ids.size()), fixture.spec.vocab),
                        alone, fp32_order, "document " + std::to_string(i));
  }
}

TEST_P(ConsistencyTest, NoBitComesFromAnotherDocumentOrALaterToken) {
  auto decoder = rig(settings());
  const std::vector<float> before = decoder.logits(batch);
  std::vector<Document> changed(documents.begin(), documents.end());
  // The second half of the second document: what comes earlier, and the other documents, must not notice.
  const std::size_t half = changed[1].ids.size() / 2;
  for (std::size_t i = half; i < changed[1].ids.size(); ++i)
    changed[1].ids[i] = static_cast<std::int32_t>((changed[1].ids[i] + 1) % fixture.spec.vocab);
  const std::vector<float> after = decoder.logits(HostBatch::join(changed));
  const auto first_changed = static_cast<std::int64_t>(batch.offsets[1]) + static_cast<std::int64_t>(half);
  const auto end = static_cast<std::int64_t>(batch.offsets[2]);
  for (std::int64_t row = 0; row < batch.tokens; ++row) {
    const auto was = test::rows_of(before, row, 1, fixture.spec.vocab),
               is = test::rows_of(after, row, 1, fixture.spec.vocab);
    // How many rows an expert has depends on all tokens, and a product of another number of rows may sum in another
    // order.
    const bool same =
        fixture.spec.experts.count == 0 ? was == is : test::distance(was, is) <= fp32_order * test::norm(was);
    EXPECT_EQ(same, row < first_changed || row >= end) << "token " << row;
  }
}

TEST_P(ConsistencyTest, TheLastRowsOfTheLogitsAreTheLastRows) {
  auto decoder = rig(settings());
  const std::vector<float> all = decoder.logits(batch);
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{5}})
    expect_near_in_norm(decoder.logits(batch, rows), test::rows_of(all, batch.tokens - rows, rows, fixture.spec.vocab),
                        fp32_order, std::to_string(rows) + " rows");
}

// A plan is worth only what the run keeps to. The rig makes every arena of exactly the dry run's size, so a run that
// took more would not have come this far; one that took less would waste memory.
TEST_P(ConsistencyTest, ADryRunTakesWhatTheRealOneTakes) {
  std::vector<std::size_t> steps;
  for (const Keep keep : all_keeps) {
    for (const DType compute : {DType::f32, DType::bf16}) {
      auto decoder = rig(settings(compute, every(keep)));
      decoder.step(batch);
      EXPECT_EQ(decoder.dry_high_water(), decoder.real_high_water());
      steps.push_back(decoder.real_high_water());
      decoder.losses(batch);
      EXPECT_EQ(decoder.dry_high_water(), decoder.real_high_water());
      EXPECT_LT(decoder.real_high_water(), steps.back()) << "a forward pass keeps nothing";
      auto cache = decoder.make_cache(8);
      decoder.feed(cache, std::span(documents[0].ids).first(3));
      EXPECT_EQ(decoder.dry_high_water(), decoder.real_high_water());
    }
  }
  // On a GPU attention has kernels with scratch of their own for bf16, more than what models this small save.
  for (std::size_t i = 0; i + 1 < steps.size() && !test::on_gpu(); i += 2)
    EXPECT_LT(steps[i + 1], steps[i]) << "bf16 takes less than fp32";
  const std::size_t on_device = steps.size() - 2;
  for (std::size_t i = 2; i < on_device; ++i) EXPECT_LT(steps[i], steps[i - 2]) << "keeping less takes less";
  const bool leaves = fixture.spec.layers > ActivationStore::places;
  for (std::size_t i = on_device; i < steps.size(); ++i)
    EXPECT_TRUE(leaves ? steps[i] < steps[i - 2] : steps[i] == steps[i - 2]) << "of inputs, so many stay on the device";
}

TEST_P(ConsistencyTest, RefusesSettingsThatCannotBe) {
  EXPECT_THROW(rig(settings(DType::f16)), Bug);
  EXPECT_THROW(rig(settings(DType::f32, {}, 0)), Bug);
  EXPECT_THROW(rig(settings(DType::f32, {Keep::all})), Bug) << "one for each layer, or none";
  auto decoder = rig(settings());
  EXPECT_THROW(decoder.logits(batch, batch.tokens + 1), Bug);
}

}  // namespace
}  // namespace so
