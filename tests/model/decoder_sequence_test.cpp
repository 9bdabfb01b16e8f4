// The decoder on slices of a batch, whose ranks are threads, against the same decoder on the whole batch.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "model/decoder_rig.h"
#include "model/sequence_split.h"
#include "offload/sequence_group.h"
#include "support/errors.h"
#include "support/label.h"
#include "support/on_gpu.h"
#include "support/thread_ranks.h"

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
constexpr double slice_sums = 1e-5;

DecoderSettings slice_settings(const ModelFixture& fixture, Keep keep, DType compute = DType::f32) {
  return {model_formats(compute), std::vector(static_cast<std::size_t>(fixture.spec.layers), keep), 16};
}

// Losses in the order of the tokens, and the sum of the ranks' gradients, as a step has them.
StepResult split_step(const ModelFixture& fixture, const DecoderSettings& settings, const HostBatch& batch, int ranks) {
  std::vector<StepResult> parts(static_cast<std::size_t>(ranks));
  test::run_ranks(ranks, [&](Communicator& all) {
    Rig cpu(1);
    SequenceGroup group(all, ranks, cpu.device(), CollectiveRoute::host);
    DecoderRig rig(cpu.stream(), cpu.ops(), fixture, settings, &group);
    StepResult& own = parts[static_cast<std::size_t>(group.rank())];
    const HostBatch slice = batch.slice(group.rank(), ranks);
    own = rig.step({slice}, 1.0 / static_cast<double>(batch.trained()));
    EXPECT_LE(rig.real_high_water(), rig.dry_high_water());
    if (fixture.spec.experts.balance == 0) {  // a step's alone have the routers' load-balancing loss
      EXPECT_EQ(rig.losses(slice), own.losses) << "forward only";
    }
  });
  StepResult sum = parts[0];
  for (int r = 1; r < ranks; ++r) {
    const StepResult& part = parts[static_cast<std::size_t>(r)];
    sum.losses.insert(sum.losses.end(), part.losses.begin(), part.losses.end());
    for (auto& [name, gradient] : sum.gradients)
      for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] += part.gradients.at(name)[i];
  }
  return sum;
}

void expect_same(const StepResult& split, const StepResult& whole, const std::string& what) {
  ASSERT_EQ(split.losses.size(), whole.losses.size()) << what;
  expect_near_in_norm(split.losses, whole.losses, slice_sums, what + ": losses");
  for (const auto& [name, gradient] : whole.gradients) {
    if (test::norm(gradient) == 0)  // an expert that no token chose
      EXPECT_EQ(test::norm(split.gradients.at(name)), 0) << what << ": " << name;
    else
      expect_near_in_norm(split.gradients.at(name), gradient, slice_sums, what + ": " + name);
  }
}

// Documents of 1 to 4 tokens, cut from those of the fixture.
std::vector<Document> cut_short(std::span<const Document> documents) {
  std::vector<Document> cut;
  for (const Document& document : documents)
    for (std::size_t at = 0; at < document.ids.size();) {
      const std::size_t end = std::min(document.ids.size(), at + 1 + cut.size() % 4);
      const auto part = [&](const std::vector<std::int32_t>& all) {
        return std::vector(all.begin() + static_cast<std::ptrdiff_t>(at),
                           all.begin() + static_cast<std::ptrdiff_t>(end));
      };
      cut.push_back({part(document.ids), part(document.labels)});
      at = end;
    }
  return cut;
}

// Biases and grouped heads; windows with sinks, one key head and experts; the router's loss, which is one of all
// tokens; norms of whole projections; norms of heads, and two rotations; delta layers beside attention with a gate.
// With 4 ranks the first two have replicated key heads.
class SequenceTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (test::on_gpu()) GTEST_SKIP() << "on the CPU only: a group's messages reach its memory alone";
  }
  void expect_split_is_whole(const HostBatch& batch, const std::string& what) {
    Rig cpu;
    const DecoderSettings settings = slice_settings(fixture, Keep::all);
    const StepResult whole = DecoderRig(cpu.stream(), cpu.ops(), fixture, settings).step(batch);
    for (const int ranks : {2, most_ranks()})
      expect_same(split_step(fixture, settings, batch, ranks), whole, what + ", ranks: " + std::to_string(ranks));
  }
  // Delta layers have two key heads and state spaces two groups, which ranks do not share.
  int most_ranks() const { return fixture.spec.has_delta() || fixture.spec.has_state_space() ? 2 : 4; }
  const ModelFixture fixture{GetParam()};
};

SO_LABEL(no_asan, test::rearranged_families("Models/SequenceTest.*/"));
INSTANTIATE_TEST_SUITE_P(Models, SequenceTest,
                         testing::Values("llama-bias", "gpt-oss", "qwen3-moe-balance", "olmo3", "gemma3-v4",
                                         "ministral3", "qwen3-5", "qwen3-5-bias", "qwen3-5-moe", "qwen3-next", "gemma4",
                                         "gemma4-moe", "glm4-moe-lite", "nemotron-h"),
                         [](const auto& parameter) {
                           std::string name = parameter.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(SequenceTest, DocumentsMayCrossSlices) {
  std::vector<Document> documents(fixture.documents.begin(), fixture.documents.begin() + 3);
  // A length that ranks do not divide.
  while (HostBatch::join(documents).tokens % 2 == 0) documents.back().ids.pop_back();
  expect_split_is_whole(HostBatch::join(documents), "three documents");
}

TEST_P(SequenceTest, OneDocumentOrManyMakeNoDifference) {
  const auto documents = std::span(fixture.documents);
  expect_split_is_whole(HostBatch::join(documents.first(1)), "one document");
  const std::vector<Document> cut = cut_short(documents.first(2));
  expect_split_is_whole(HostBatch::join(cut), std::to_string(cut.size()) + " documents");
}

// The first half has no target; then none have but the last token of each slice, whose label is the next one's first.
TEST_P(SequenceTest, SlicesMayHaveNoTrainedToken) {
  std::vector<Document> documents(fixture.documents.begin(), fixture.documents.begin() + 2);
  const HostBatch all = HostBatch::join(documents);
  HostBatch half = all;
  std::fill_n(half.targets.begin(), half.tokens / 2 + 1, -1.0);
  if (half.trained() == 0) half.targets[static_cast<std::size_t>(half.tokens) - 2] = 3;
  expect_split_is_whole(half, "the second half");
  HostBatch borders = all;
  std::fill(borders.targets.begin(), borders.targets.end(), -1.0);
  for (const int rank : {1, 2, 3}) {
    const auto border = static_cast<std::size_t>(slice_begin(all.tokens, 4, rank));
    borders.targets[border - 1] = borders.ids[border];
  }
  expect_split_is_whole(borders, "the borders");
}

TEST_P(SequenceTest, WhatLayersKeepChangesNoBit) {
  const HostBatch batch = HostBatch::join(std::span(fixture.documents).first(2));
  const StepResult all = split_step(fixture, slice_settings(fixture, Keep::all), batch, 2);
  for (const Keep keep : {Keep::light, Keep::attention, Keep::input, Keep::host}) {
    const StepResult less = split_step(fixture, slice_settings(fixture, keep), batch, 2);
    EXPECT_EQ(less.losses, all.losses) << name_of(keep);
    EXPECT_EQ(less.gradients, all.gradients) << name_of(keep);
  }
  DecoderSettings tiles = slice_settings(fixture, Keep::input);
  tiles.tile_rows = 5;
  expect_same(split_step(fixture, tiles, batch, 2), all, "tiles");
}

// The exchanges of attention are made again too, by all ranks in the same order.
TEST_P(SequenceTest, InputsThatAreMadeAgainChangeNoBit) {
  const ModelFixture deep = ModelFixture::deep(GetParam(), std::max<std::int64_t>(5, fixture.spec.layers));
  const HostBatch batch = HostBatch::join(std::span(deep.documents).first(2));
  const StepResult kept = split_step(deep, slice_settings(deep, Keep::input), batch, 2);
  for (const std::size_t every : {2, 3}) {
    DecoderSettings settings = slice_settings(deep, Keep::nothing);
    for (std::size_t layer = 0; layer < settings.keep.size(); layer += every) settings.keep[layer] = Keep::host;
    const StepResult remade = split_step(deep, settings, batch, 2);
    EXPECT_EQ(remade.losses, kept.losses) << every;
    EXPECT_EQ(remade.gradients, kept.gradients) << every;
  }
}

// bf16 rounds at other places: what ranks add up is rounded before, so the split run is as far from fp32 as the whole.
TEST_P(SequenceTest, InBf16AsFarFromFp32AsTheWhole) {
  const HostBatch batch = HostBatch::join(std::span(fixture.documents).first(3));
  Rig cpu;
  const auto whole = [&](DType compute) {
    return DecoderRig(cpu.stream(), cpu.ops(), fixture, slice_settings(fixture, Keep::all, compute)).step(batch);
  };
  const StepResult exact = whole(DType::f32), rounded = whole(DType::bf16);
  const StepResult split = split_step(fixture, slice_settings(fixture, Keep::all, DType::bf16), batch, most_ranks());
  const auto off = [&](const StepResult& step) {
    double error = 0, size = 0;
    for (const auto& [name, gradient] : exact.gradients) {
      error += std::pow(test::distance(step.gradients.at(name), gradient), 2);
      size += std::pow(test::norm(gradient), 2);
    }
    return std::sqrt(error / size);
  };
  EXPECT_LE(off(split), 1.5 * off(rounded));
}

TEST(SequenceSplit, RanksShareTheKeyHeadsOfDeltaLayersToo) {
  const ModelFixture fixture("qwen3-5");
  for (const int ranks : {1, 2}) require_sequence_split(fixture.spec, ranks, "model");
  EXPECT_EQ(
      test::refusal([&] { require_sequence_split(fixture.spec, 4, "model"); }),
      "--sequence_parallel_size 4: each rank attends with as many heads as any other, and model has 4 query and 2 "
      "key and value heads, and in its delta layers 2 key heads; use one of 1, 2");
}

TEST(SequenceSplit, LayersWithoutAWindowShareTheirOwnHeads) {
  const ModelFixture fixture("gemma4");
  for (const int ranks : {1, 2, 4}) require_sequence_split(fixture.spec, ranks, "model");
  EXPECT_EQ(
      test::refusal([&] { require_sequence_split(fixture.spec, 8, "model"); }),
      "--sequence_parallel_size 8: each rank attends with as many heads as any other, and model has 4 query and 2 "
      "key and value heads, 1 in layers without a window; use one of 1, 2, 4");
}

TEST(SequenceSplit, RanksShareHeadsEqually) {
  DecoderSpec spec;
  spec.layers = 1;
  spec.heads = 12;
  spec.kv_heads = 4;
  for (const int ranks : {1, 2, 4, 12}) {
    std::vector<int> queries(12, 0);
    for (int r = 0; r < ranks; ++r) {
      const RankHeads heads = rank_heads(spec.shape(0), r, ranks);
      for (std::int64_t q = heads.first_q; q < heads.first_q + heads.q; ++q) {
        ++queries[static_cast<std::size_t>(q)];
        // Attention pairs query head q of a rank with its key head q / (queries for each).
        EXPECT_EQ(heads.first_kv + (q - heads.first_q) / (heads.q / heads.kv), q / 3) << ranks << " ranks, head " << q;
      }
    }
    EXPECT_EQ(queries, std::vector<int>(12, 1)) << ranks << " ranks";
    require_sequence_split(spec, ranks, "model");
  }
  for (const int ranks : {3, 5, 6, 8, 24})
    EXPECT_EQ(test::refusal([&] { require_sequence_split(spec, ranks, "model"); }),
              "--sequence_parallel_size " + std::to_string(ranks) +
                  ": each rank attends with as many heads as any other, and model has 12 query and 4 key and value "
                  "heads; use one of 1, 2, 4, 12");
}

}  // namespace
}  // namespace so
