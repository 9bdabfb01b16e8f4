#include "model/flops.h"

#include <gtest/gtest.h>

#include <array>

#include "io/presets.h"
#include "model/config.h"
#include "model/parameters.h"

namespace so {
namespace {

// Per layer: qkv 24 x 4, o 4 x 12, gate, up and down 3 x 5 x 4: 204 in matrices, and two norms of 4.
DecoderSpec tiny() {
  DecoderSpec s;
  s.architecture = "LlamaForCausalLM";
  s.vocab = 10, s.hidden = 4, s.layers = 2, s.heads = 2, s.kv_heads = 1, s.head_dim = 6, s.intermediate = 5;
  return s;
}

TEST(Flops, ParametersOfATinyModel) {
  DecoderSpec s = tiny();
  EXPECT_EQ(parameter_count(s), 2 * (204 + 8) + 4 + 40 + 40);
  s.tied_embeddings = true;
  EXPECT_EQ(parameter_count(s), 2 * (204 + 8) + 4 + 40);
  s.qk_norm = true;
  EXPECT_EQ(parameter_count(s), 2 * (204 + 8 + 12) + 4 + 40);
  s.qkv_bias = s.o_bias = true;  // 24 on q, k, v and 4 on o
  EXPECT_EQ(parameter_count(s), 2 * (204 + 8 + 12 + 28) + 4 + 40);
  s.mlp_bias = true;  // 10 on gate and up, 4 on down
  EXPECT_EQ(parameter_count(s), 2 * (204 + 8 + 12 + 28 + 14) + 4 + 40);
}

TEST(Flops, OfTheModelByHand) {
  // Documents of 3 and 2 tokens. Matrices: (2 * 204 + 40) parameters, 2 FLOPs each forward and 4 backward, 5 tokens.
  // Attention: 1 + 2 + 3 and 1 + 2 pairs of query and key, in 2 layers of 2 heads; a pair costs 2 * 6 for its score and
  // 2 * 6 for its value forward, and twice that backward.
  const std::array<std::int32_t, 3> cu_seqlens{0, 3, 5};
  const double matrices = 448.0 * 6 * 5, attention = 9.0 * 2 * 2 * (12 + 12) * 3;
  DecoderSpec s = tiny();
  EXPECT_EQ(model_flops(s, cu_seqlens), matrices + attention);
  EXPECT_EQ(matrices + attention, 16032);
  // A tied projection is the same product; norms and biases are no products.
  s.tied_embeddings = s.qk_norm = s.qkv_bias = s.o_bias = s.mlp_bias = true;
  EXPECT_EQ(model_flops(s, cu_seqlens), 16032);
  // Two documents cost less than one of their length: they do not meet.
  const std::array<std::int32_t, 2> joined{0, 5};
  EXPECT_EQ(model_flops(s, joined) - 16032, 6.0 * 2 * 2 * (12 + 12) * 3);
  EXPECT_EQ(model_flops(s, {}), 0);
}

// A layer with a window of 2 and heads of 6, and one that sees all with heads of 10, whose keys are their values:
// products of 24 x 4 and 4 x 12, and of 30 x 4 and 4 x 20. Each has its own pairs, and each pair its own head.
TEST(Flops, OfLayersWithOtherHeadsByHand) {
  DecoderSpec s = tiny();
  s.architecture = "Gemma4ForCausalLM";
  s.global_heads = GlobalHeads{.kv_heads = 1, .head_dim = 10, .keys_are_values = true};
  s.layer_specs = {{.window = 2}, {}};
  s.qk_norm = s.value_norm = true;
  EXPECT_EQ(matmul_parameters(s, 0), 24 * 4 + 4 * 12 + 60);
  EXPECT_EQ(matmul_parameters(s, 1), 30 * 4 + 4 * 20 + 60);
  const std::array<std::int32_t, 3> cu_seqlens{0, 3, 5};
  EXPECT_EQ(mixing_flops(s, 0, cu_seqlens), (1 + 2 + 2 + 1 + 2) * 2 * (12 + 12));
  EXPECT_EQ(mixing_flops(s, 1, cu_seqlens), (1 + 2 + 3 + 1 + 2) * 2 * (20 + 20));
  // Scales of layers are parameters of the embedding's unit that nobody trains.
  const std::vector<std::int64_t> without = unit_parameter_counts(s);
  s.layer_scales = true;
  std::vector<std::int64_t> with = unit_parameter_counts(s);
  EXPECT_EQ(with.front(), without.front() + 2);
  with.front() -= 2;
  EXPECT_EQ(with, without);
  std::int64_t frozen = 0;
  for (const Parameter& p : make_parameters(s)) frozen += p.trained ? 0 : 1;
  EXPECT_EQ(frozen, 2);
}

// A delta layer: 2 key heads of 3 and 4 value heads of 5: 32 columns are convolved, 20 gate, 8 say how much. The
// products of 60 x 4 and 4 x 20, and an MLP of 3 x 5 x 4; the rule takes 8 * 20 * 3 FLOPs a token, whatever its
// document.
TEST(Flops, OfADeltaLayerByHand) {
  DecoderSpec s = tiny();
  s.architecture = "Qwen3_5ForCausalLM";
  s.delta = {.k_heads = 2, .v_heads = 4, .k_dim = 3, .v_dim = 5, .convolution = 4};
  s.layer_specs = {{.mixer = TokenMixer::gated_delta}, {}};
  EXPECT_EQ(matmul_parameters(s, 0), 60 * 4 + 4 * 20 + 60);
  EXPECT_EQ(matmul_parameters(s, 1), 204);
  const std::array<std::int32_t, 3> cu_seqlens{0, 3, 5};
  const auto units = unit_flops(s, cu_seqlens);
  EXPECT_EQ(units[1].forward, 380.0 * 2 * 5 + 480 * 5);
  EXPECT_EQ(units[1].backward, 2 * units[1].forward);
  EXPECT_EQ(units[2].forward, 204.0 * 2 * 5 + 9.0 * 2 * (12 + 12));
  // Beside those matrices a convolution of 32 x 4, two numbers a value head, a norm of 5, and two norms of 4.
  EXPECT_EQ(unit_parameter_counts(s)[1], 380 + 128 + 8 + 5 + 8);
  // With a gate the queries of the other layer are twice as wide.
  s.output_gate = s.qk_norm = true;
  EXPECT_EQ(matmul_parameters(s, 1), 204 + 12 * 4);
  EXPECT_EQ(unit_flops(s, cu_seqlens)[2].forward, 252.0 * 2 * 5 + 9.0 * 2 * (12 + 12));
  // The published count has attention in that layer alone.
  EXPECT_EQ(reference_flops(s, 1, 7, false),
            2 * 3.0 * static_cast<double>(parameter_count(s)) * 7 + 4 * 3 * 1 * 4 * 49.0);
}

TEST(Flops, OfTheUnitsAddUpToTheModels) {
  const std::array<std::int32_t, 3> cu_seqlens{0, 3, 5};
  const auto units = unit_flops(tiny(), cu_seqlens);
  ASSERT_EQ(units.size(), 4u);
  EXPECT_EQ(units[0].forward, 0);                                    // a gather
  EXPECT_EQ(units[1].forward, 204.0 * 2 * 5 + 9.0 * 2 * (12 + 12));  // as above, of one layer
  EXPECT_EQ(units[3].forward, 40.0 * 2 * 5);
  double sum = 0;
  for (const UnitFlops& unit : units) {
    EXPECT_EQ(unit.backward, 2 * unit.forward);
    sum += unit.forward + unit.backward;
  }
  EXPECT_EQ(sum, model_flops(tiny(), cu_seqlens));
}

TEST(Flops, OfThePublishedCountByHand) {
  // 3 rows of 7: 2 c P S + 4 c L H S^2 each, P = 508.
  EXPECT_EQ(reference_flops(tiny(), 3, 7, false), 3.0 * (2 * 3 * 508 * 7 + 4 * 3 * 2 * 4 * 49));
  EXPECT_EQ(reference_flops(tiny(), 3, 7, true), 3.0 * (2 * 4 * 508 * 7 + 4 * 4 * 2 * 4 * 49));
}

// P of tiny() is 40 of the embedding, 212 a layer, and 44 of the head with its norm.
TEST(Flops, OfThePublishedCountWithoutWhatFreezingSpares) {
  const std::vector<UnitBackward> all(4), low{{false, 1}, {false, 1}, {true, 0.5}, {true, 0}};
  for (const bool recompute : {false, true}) {
    EXPECT_EQ(reference_flops(tiny(), 3, 7, recompute, all), reference_flops(tiny(), 3, 7, recompute));
    const double c = recompute ? 3 : 2;  // forward, again, and the gradient of the input
    const double products = 40 + 212 + (c + 0.5) * 212 + c * 44, attention = 4 + (c + 1) * 4;
    EXPECT_EQ(reference_flops(tiny(), 3, 7, recompute, low), 3.0 * (2 * products * 7 + 4 * attention * 49));
  }
  // Tied, the embedding's numbers are those of the head's product, whose own gradient is all that is frozen.
  DecoderSpec tied = tiny();
  tied.tied_embeddings = true;
  const std::vector<UnitBackward> embedding{{false, 1}, {true, 1}, {true, 1}, {true, 0}};
  EXPECT_EQ(reference_flops(tied, 1, 7, false, embedding), 2 * (3 * 424.0 + 2 * 44) * 7 + 4 * 3 * 2 * 4 * 49.0);
}

TEST(Flops, OfALargeModelDoNotOverflow) {
  // 70B parameters, a million tokens in one document: beyond 2^63.
  const DecoderSpec s = read_decoder_spec(resolve_config("llama-3.3-70b").text, "config.json");
  const std::array<std::int32_t, 2> cu_seqlens{0, 1 << 20};
  const double n = 1 << 20;
  const double matrices = 6 * (70'553'706'496.0 - 128256.0 * 8192 - 161.0 * 8192) * n;
  const double attention = 12 * 80 * 64 * 128 * n * (n + 1) / 2;
  EXPECT_DOUBLE_EQ(model_flops(s, cu_seqlens), matrices + attention);
  EXPECT_GT(model_flops(s, cu_seqlens), 0x1p62);
}

}  // namespace
}  // namespace so
