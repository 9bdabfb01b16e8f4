// A unit's work on a device is compared with arithmetic and with measurements.
#include "plan/placement/unit_work.h"

#include <gtest/gtest.h>

#include <vector>

#include "io/presets.h"
#include "model/config.h"
#include "model/flops.h"
#include "model/parameters.h"

namespace so::test {
namespace {

DecoderSpec preset_spec(const char* name) {
  const ModelConfig config = resolve_config(name);
  return read_decoder_spec(config.text, config.origin);
}

std::vector<std::int32_t> rows(int count, int tokens) {
  std::vector<std::int32_t> offsets{0};
  for (int i = 0; i < count; ++i) offsets.push_back(offsets.back() + tokens);
  return offsets;
}

const UnitWork& layer_of(const std::vector<UnitWork>& units, std::int64_t index) {
  return units[static_cast<std::size_t>(layer_unit(index))];
}

// Forward and backward of 4 x 4096 tokens without an optimizer, and with one that is all the GPU's, on an H200 that did
// 670 TFLOP/s and 4150 GB/s.
struct MeasuredPass {
  const char* model;
  double seconds;  // of forward and backward
};
class UnitWorkMeasured : public testing::TestWithParam<MeasuredPass> {};

TEST_P(UnitWorkMeasured, WithinThreePercent) {
  double seconds = 0;
  for (const UnitWork& unit : unit_work(preset_spec(GetParam().model), rows(4, 4096), DType::bf16, h200_efficiencies()))
    seconds += (unit.forward_flops + unit.backward_flops) / 670e12 +
               (unit.forward_bytes + unit.backward_bytes) / 4150e9 +
               (unit.forward_kernels + unit.backward_kernels) * 1.8e-6;
  EXPECT_NEAR(seconds / GetParam().seconds, 1, 0.03);
}

INSTANTIATE_TEST_SUITE_P(H200, UnitWorkMeasured,
                         testing::Values(MeasuredPass{"llama-3.1-8b", 16384 / 12674.0},
                                         MeasuredPass{"qwen3-14b", 16384 / 6922.0},
                                         // 28 bytes for each of 4.02 billion parameters are AdamW's.
                                         MeasuredPass{"qwen3-4b", 16384 / 19860.0 - 28 * 4.02e9 / 4150e9}),
                         [](const auto& i) {
                           std::string name = i.param.model;
                           for (char& c : name)
                             if (c == '-' || c == '.') c = '_';
                           return name;
                         });

// Of 32,768 tokens; every fourth layer has attention.
TEST(UnitWork, ADeltaLayerTakesAsLongHoweverLongItsDocumentsAre) {
  const DecoderSpec spec = preset_spec("qwen3.5-4b");
  const auto work = [&](int count, int tokens) {
    return unit_work(spec, rows(count, tokens), DType::bf16, h200_efficiencies());
  };
  const std::vector<UnitWork> one = work(1, 32768), many = work(32, 1024);
  EXPECT_EQ(layer_of(one, 0).forward_flops, layer_of(many, 0).forward_flops);
  EXPECT_EQ(layer_of(one, 0).backward_flops, layer_of(many, 0).backward_flops);
  EXPECT_GT(layer_of(one, 3).forward_flops, 1.5 * layer_of(many, 3).forward_flops);
  // The rule itself, where products reach 676 TFLOP/s: measured of 4 x 8,192 tokens.
  const double products = 2 * 32768.0 * static_cast<double>(matmul_parameters(spec, 0));
  EXPECT_NEAR((layer_of(one, 0).forward_flops - products) / 676e12, 0.98e-3, 0.1e-3);
  EXPECT_NEAR((layer_of(one, 0).backward_flops - 2 * products) / 676e12, 2.86e-3, 0.2e-3);
  EXPECT_EQ(product_share(spec, DType::bf16, h200_efficiencies()), 1);
}

TEST(UnitWork, ASharedExpertIsADenseMlpBesideTheOthers) {
  const DecoderSpec spec = preset_spec("qwen3.5-35b-a3b");
  DecoderSpec alone = spec;
  alone.experts.shared_intermediate = 0;
  alone.experts.shared_gate = false;
  constexpr double tokens = 16384, hidden = 2048, width = 512;
  const auto layer = [&](const DecoderSpec& of) {
    return layer_of(unit_work(of, rows(4, 4096), DType::bf16, h200_efficiencies()), 0);
  };
  const UnitWork with = layer(spec), without = layer(alone);
  const double products = 2 * tokens * hidden * (3 * width + 1);
  EXPECT_NEAR((with.forward_flops - without.forward_flops) / products, 1, 1e-6);
  EXPECT_NEAR((with.backward_flops - without.backward_flops) / (2 * products), 1, 1e-6);
  EXPECT_EQ(with.forward_bytes - without.forward_bytes, 2 * tokens * (3 * width + 2 * hidden));
  EXPECT_EQ(with.backward_bytes - without.backward_bytes, 2 * tokens * (8 * width + 4 * hidden));
  EXPECT_EQ(with.forward_kernels - without.forward_kernels, 4);
  EXPECT_EQ(with.backward_kernels - without.backward_kernels, 7);
}

TEST(UnitWork, SizesThatTheMatrixUnitsDoNotTakeCostWhatTheyDo) {
  const Efficiencies& reached = h200_efficiencies();
  const DecoderSpec even = preset_spec("qwen3-4b");
  const auto products = [&](const DecoderSpec& spec, DType type) {
    return layer_of(unit_work(spec, rows(1, 128), type, reached), 0).forward_flops;
  };
  DecoderSpec odd = even, unaligned = even, more_words = even;
  odd.intermediate += 1;
  unaligned.intermediate += 2;
  more_words.vocab += 1;
  EXPECT_EQ(product_share(even, DType::bf16, reached), 1);
  EXPECT_EQ(product_share(more_words, DType::bf16, reached), 1) << "rows of logits are aligned";
  EXPECT_EQ(product_share(odd, DType::bf16, reached), reached.odd_products);
  EXPECT_EQ(product_share(unaligned, DType::bf16, reached), reached.unaligned_products);
  EXPECT_EQ(product_share(odd, DType::f32, reached), 1) << "the matrix units take no part";
  EXPECT_NEAR(products(odd, DType::bf16) / products(even, DType::bf16), 1 / reached.odd_products, 0.3)
      << "but for attention";
  EXPECT_NEAR(products(odd, DType::f32) / products(even, DType::f32), 1, 0.01);
}

TEST(UnitWork, HasAllTheFlopsOfADenseModelAndMore) {
  const DecoderSpec spec = preset_spec("llama-3.1-8b");
  const std::vector<std::int32_t> documents = rows(2, 1000);
  const std::vector<UnitFlops> flops = unit_flops(spec, documents);
  const std::vector<UnitWork> work = unit_work(spec, documents, DType::bf16, h200_efficiencies());
  ASSERT_EQ(work.size(), flops.size());
  EXPECT_EQ(work.front().forward_flops, 0) << "a gather";
  EXPECT_EQ(work.back().forward_flops, flops.back().forward);
  for (std::int64_t l = 0; l < spec.layers; ++l) {
    const UnitFlops& f = flops[static_cast<std::size_t>(layer_unit(l))];
    const double attention = 4 * 4096.0 * attention_pairs(documents, 0), products = f.forward - attention;
    // Half of what 132 processors do for 128 queries of 128 with 1000 keys each.
    const double more = 4 * 128.0 * 0.5 * 132 * 128 * 1000;
    EXPECT_NEAR(layer_of(work, l).forward_flops, products + (attention + more) / 0.76, 1e-9 * f.forward);
    EXPECT_NEAR(layer_of(work, l).backward_flops, 2 * (products + (attention + more) / 0.45), 1e-9 * f.backward);
  }
  // 8 x 4096 of the norms, 2 x (4096 + 1024) of rotation, 3 or 6 x 14336 of the gated activation, 2 bytes each.
  EXPECT_EQ(layer_of(work, 0).forward_bytes, 2000 * 2.0 * (8 * 4096 + 2 * 5120 + 3 * 14336));
  EXPECT_EQ(layer_of(work, 0).backward_bytes, 2000 * 2.0 * (8 * 4096 + 2 * 5120 + 6 * 14336));
}

// Elements of memory-bound work beside those of a Llama layer, and the last product of a layer that is made again.
TEST(UnitWork, CountsNormsAndScalesThatAFamilyHas) {
  const DecoderSpec plain = preset_spec("llama-3.1-8b");
  const auto work = [](const DecoderSpec& spec) {
    return layer_of(unit_work(spec, rows(1, 2000), DType::bf16, h200_efficiencies()), 0);
  };
  const double bytes = 2000 * 2.0;
  DecoderSpec spec = plain;
  spec.output_norms = true;
  EXPECT_EQ(work(spec).forward_bytes - work(plain).forward_bytes, bytes * 4 * 4096);
  EXPECT_EQ(work(spec).backward_bytes - work(plain).backward_bytes, bytes * 6 * 4096);
  EXPECT_EQ(work(spec).forward_kernels, work(plain).forward_kernels + 2);
  const std::vector<Keep> input(32, Keep::input);
  const auto again = [&](const DecoderSpec& s) {
    return recomputation(s, input, rows(1, 2000), DType::bf16, h200_efficiencies()).flops[1];
  };
  EXPECT_EQ(again(spec) - again(plain), 2.0 * 2000 * 4096 * 14336);
  spec.input_norms = false;
  EXPECT_EQ(work(spec).forward_bytes - work(plain).forward_bytes, bytes * 2 * 4096);
  spec = plain;
  spec.projection_norm = true;
  EXPECT_EQ(work(spec).forward_bytes - work(plain).forward_bytes, bytes * 2 * 5120);
  EXPECT_EQ(work(spec).backward_bytes - work(plain).backward_bytes, bytes * 3 * 5120);
  spec = plain;
  spec.layer_specs.assign(32, {.rotation = LayerRotation::none});
  EXPECT_EQ(work(plain).forward_bytes - work(spec).forward_bytes, bytes * 2 * 5120);
}

// Four ranks do a quarter each of what one does, and what is idle at the end of attention's rows is more of fewer
// heads.
TEST(UnitWork, OfRanksThatSplitASequenceIsTheirShare) {
  const DecoderSpec spec = preset_spec("llama-3.1-8b");
  const std::vector<std::int32_t> row = rows(1, 131072);
  const auto works = [&](int ranks) { return unit_work(spec, row, DType::bf16, h200_efficiencies(), {}, ranks); };
  const UnitWork whole = layer_of(works(1), 3), quarter = layer_of(works(4), 3);
  EXPECT_NEAR(4 * quarter.forward_flops / whole.forward_flops, 1, 0.02);
  EXPECT_NEAR(4 * quarter.backward_flops / whole.backward_flops, 1, 0.02);
  EXPECT_GT(4 * quarter.forward_flops, whole.forward_flops);
  EXPECT_EQ(4 * works(4).back().forward_flops, works(1).back().forward_flops) << "the head has no attention";
  // 32 + 2 x 8 heads of 128 of each token go to where they attend and 32 come back; three quarters are others'.
  const double received = 131072 / 4.0 * (48 + 32) * 128 * 2 * 3 / 4;
  EXPECT_DOUBLE_EQ(quarter.forward_received, received);
  EXPECT_DOUBLE_EQ(quarter.backward_received, 2 * received);
  EXPECT_GT(4 * quarter.forward_bytes, whole.forward_bytes) << "packing";
  // With 16 ranks each key and value head is on two of them.
  EXPECT_DOUBLE_EQ(layer_of(works(16), 3).forward_received, 131072 / 16.0 * (64 + 32) * 128 * 2 * 15 / 16);
  EXPECT_EQ(whole.forward_received, 0);
  const Recomputation again = recomputation(spec, std::vector(32, Keep::input), row, DType::bf16, h200_efficiencies(),
                                            {}, 0, 4),
                      alone = recomputation(spec, std::vector(32, Keep::input), row, DType::bf16, h200_efficiencies());
  EXPECT_NEAR(4 * again.flops[4] / alone.flops[4], 1, 0.02);
  EXPECT_DOUBLE_EQ(4 * again.device_bytes[4], alone.device_bytes[4]);
}

TEST(UnitWork, OfAWindowIsWhatItsTilesVisit) {
  const DecoderSpec spec = preset_spec("gpt-oss-20b");
  ASSERT_EQ(spec.layer(0).window, 128);
  ASSERT_EQ(spec.layer(1).window, 0);
  const auto forward = [&](std::int64_t index, int tokens) {
    return layer_of(unit_work(spec, rows(1, tokens), DType::bf16, h200_efficiencies()), index).forward_flops;
  };
  // The window's layer grows with the tokens, the other with their square.
  EXPECT_NEAR(forward(0, 32768) / forward(0, 16384), 1.95, 0.05) << "twice, and experts with more rows";
  EXPECT_GT(forward(1, 32768) / forward(1, 16384), 2.3);
  // Rows shorter than the window: as without one.
  EXPECT_DOUBLE_EQ(forward(0, 100), forward(1, 100));
}

// Layers with a window have heads of 256, the sixth has heads of 512 and sees all: 7.2 and 28.1 ms were measured.
TEST(UnitWork, OfLayersWithOtherHeadsIsTheirOwn) {
  const DecoderSpec spec = preset_spec("gemma-4-31b");
  ASSERT_EQ(spec.shape(5).head_dim, 512);
  const std::vector<std::int32_t> document = rows(1, 8192);
  const std::vector<UnitWork> work = unit_work(spec, document, DType::bf16, h200_efficiencies());
  const double products = 2 * 8192.0 * static_cast<double>(matmul_parameters(spec, 5));
  EXPECT_NEAR((layer_of(work, 5).forward_flops - products) / 670e12, 7.2e-3, 0.3e-3);
  EXPECT_NEAR((layer_of(work, 5).backward_flops - 2 * products) / 670e12, 28.1e-3, 1.5e-3);
  EXPECT_LT(layer_of(work, 0).forward_flops, 0.9 * layer_of(work, 5).forward_flops);
}

TEST(UnitWork, OfExpertsWithFewRowsIsMore) {
  const DecoderSpec spec = preset_spec("gpt-oss-20b");
  EXPECT_LT(mlp_share(spec, 0, 1000, h200_efficiencies()), 0.5);
  EXPECT_NEAR(mlp_share(spec, 0, 16384, h200_efficiencies()), 0.9 * 2048 / (2048 + 209), 1e-12);
  EXPECT_EQ(mlp_share(preset_spec("qwen3-4b"), 0, 10, h200_efficiencies()), 1);
  // Twice the tokens in less than twice the time.
  const auto seconds = [&](int tokens) {
    return layer_of(unit_work(spec, rows(4, tokens), DType::bf16, h200_efficiencies()), 1).forward_flops;
  };
  EXPECT_LT(seconds(256), 1.8 * seconds(128));
}

}  // namespace
}  // namespace so::test
