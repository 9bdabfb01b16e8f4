#include "offload/schedule/parameter_layout.h"

#include <gtest/gtest.h>

#include <vector>

namespace so {
namespace {

Parameter matrix(std::string name, std::int64_t rows, std::int64_t columns, int unit, bool joined = false) {
  return {std::move(name), {rows, columns}, true, unit, joined};
}
Parameter vector_of(std::string name, std::int64_t n, int unit) { return {std::move(name), {n}, false, unit, false}; }

// Embedding; a layer with a norm, three joined matrices and another; a head norm.
ParameterLayout example() {
  return ParameterLayout({matrix("embed", 10, 7, 0),                                                     // 70
                          vector_of("norm", 7, 1),                                                       // 7
                          matrix("q", 8, 7, 1), matrix("k", 3, 7, 1, true), matrix("v", 3, 7, 1, true),  // 56 21 21
                          matrix("o", 8, 8, 1),                                                          // 64
                          vector_of("final_norm", 7, 2)});                                               // 7
}

TEST(ParameterLayout, StartsAtMultiplesOfTheAlignmentUnlessJoined) {
  const ParameterLayout layout = example();
  const std::vector<Range> expected = {{0, 70}, {128, 135}, {192, 248}, {248, 269}, {269, 290}, {320, 384}, {384, 391}};
  ASSERT_EQ(layout.count(), 7);
  for (int i = 0; i < layout.count(); ++i) EXPECT_EQ(layout.range(i), expected[static_cast<std::size_t>(i)]) << i;
  EXPECT_EQ(layout.elements(), 448);
  EXPECT_EQ(layout.parameter_elements(), 70 + 7 + 56 + 21 + 21 + 64 + 7);
}

TEST(ParameterLayout, UnitsCoverTheRangeWithTheirPadding) {
  const ParameterLayout layout = example();
  ASSERT_EQ(layout.units(), 3);
  EXPECT_EQ(layout.unit_range(0), (Range{0, 128}));
  EXPECT_EQ(layout.unit_range(1), (Range{128, 384}));
  EXPECT_EQ(layout.unit_range(2), (Range{384, 448}));
  EXPECT_EQ(layout.unit_parameters(0), (std::pair{0, 1}));
  EXPECT_EQ(layout.unit_parameters(1), (std::pair{1, 6}));
  EXPECT_EQ(layout.unit_parameters(2), (std::pair{6, 7}));
}

TEST(ParameterLayout, FindsByName) {
  const ParameterLayout layout = example();
  EXPECT_EQ(layout.find("embed"), 0);
  EXPECT_EQ(layout.find("v"), 4);
  EXPECT_EQ(layout.find("w"), -1);
  EXPECT_EQ(layout.find(""), -1);
  for (int i = 0; i < layout.count(); ++i) EXPECT_EQ(layout.find(layout.parameter(i).name), i);
  const ParameterLayout copy = layout;
  EXPECT_EQ(copy.find("o"), 5);
}

TEST(ParameterLayout, FindsByElement) {
  const ParameterLayout layout = example();
  for (std::int64_t element = 0; element < layout.elements(); ++element) {
    int expected = 0;
    while (expected < layout.count() && layout.range(expected).end <= element) ++expected;
    ASSERT_EQ(layout.first_ending_after(element), expected) << element;
  }
  EXPECT_EQ(layout.first_ending_after(layout.elements()), layout.count());
}

TEST(ParameterLayout, IsCutAtWholeBlocksFromAParametersBeginning) {
  std::vector<Parameter> parameters = {matrix("embed", 10, 7, 0), matrix("q", 20, 64, 1), matrix("k", 6, 64, 1, true)};
  parameters[1].cut = 3 * 64;
  parameters[2].cut = 2 * 64;
  const ParameterLayout layout(parameters);
  ASSERT_EQ(layout.range(1), (Range{128, 1408}));
  for (std::int64_t element = 0; element <= layout.elements(); ++element) {
    std::int64_t expected = element;  // the embedding has no blocks, and there are none in padding
    while ((expected > 128 && expected < 1408 && (expected - 128) % 192 != 0) ||
           (expected > 1408 && expected < 1792 && (expected - 1408) % 128 != 0))
      --expected;
    ASSERT_EQ(layout.cut_before(element), expected) << element;
  }
  EXPECT_EQ(layout.cut_before(1400), 1280) << "the last block of q is a part of one";
}

TEST(ParameterLayout, ViewsOfJoinedParametersReadAsOneMatrix) {
  const ParameterLayout layout = example();
  std::vector<float> flat(static_cast<std::size_t>(layout.elements()));
  const Tensor qkv = layout.view(flat.data(), DType::f32, 2, 3);
  EXPECT_EQ(std::vector(qkv.shape().begin(), qkv.shape().end()), (std::vector<std::int64_t>{14, 7}));
  EXPECT_EQ(qkv.data(), flat.data() + 192);
  const Tensor k = layout.view(flat.data(), DType::f32, 3);
  EXPECT_EQ(k.data(), qkv.rows(8, 3).data());
  EXPECT_EQ(std::vector(k.shape().begin(), k.shape().end()), (std::vector<std::int64_t>{3, 7}));
  const Tensor norm = layout.view(flat.data(), DType::f32, 1);
  EXPECT_EQ(std::vector(norm.shape().begin(), norm.shape().end()), std::vector<std::int64_t>{7});

  std::vector<bf16> half(flat.size());
  EXPECT_EQ(layout.view(half.data(), DType::bf16, 2).data(), half.data() + 192) << "offsets count elements, not bytes";
  EXPECT_THROW(layout.view(flat.data(), DType::f32, 1, 2), Bug) << "q does not continue norm";
  EXPECT_THROW(layout.view(flat.data(), DType::f32, 4, 2), Bug) << "o does not continue v";
}

TEST(ParameterLayout, ThreeDimensionsAreViewedAsTheyAre) {
  const ParameterLayout layout({vector_of("norm", 3, 0), {"experts", {2, 5, 7}, true, 0, false}, matrix("o", 2, 7, 0)});
  EXPECT_EQ(layout.range(1), (Range{64, 134}));
  EXPECT_EQ(layout.range(2).begin, 192);
  std::vector<float> flat(static_cast<std::size_t>(layout.elements()));
  const Tensor experts = layout.view(flat.data(), DType::f32, 1);
  EXPECT_EQ(std::vector(experts.shape().begin(), experts.shape().end()), (std::vector<std::int64_t>{2, 5, 7}));
  EXPECT_EQ(experts.data(), flat.data() + 64);
  EXPECT_THROW(layout.view(flat.data(), DType::f32, 1, 2), Bug) << "o does not continue the experts";
}

TEST(ParameterLayout, JoinedVectorsReadAsOneVector) {
  ParameterLayout layout({{"qb", {8}, false, 0, false}, {"kb", {3}, false, 0, true}});
  std::vector<float> flat(static_cast<std::size_t>(layout.elements()));
  const Tensor bias = layout.view(flat.data(), DType::f32, 0, 2);
  EXPECT_EQ(std::vector(bias.shape().begin(), bias.shape().end()), std::vector<std::int64_t>{11});
}

void expect_runs(const ParameterLayout& layout, Range range, const std::vector<std::pair<Range, bool>>& expected) {
  const auto runs = layout.runs(range);
  ASSERT_EQ(runs.size(), expected.size()) << range.begin << ".." << range.end;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    EXPECT_EQ(runs[i].range, expected[i].first) << i;
    EXPECT_EQ(runs[i].decay, expected[i].second) << i;
  }
}

TEST(ParameterLayout, RunsLeaveOutPaddingAndSplitByDecay) {
  const ParameterLayout layout = example();
  // The joined matrices are one run; o follows after padding; final_norm follows o at once but does not decay.
  expect_runs(layout, {0, 448},
              {{{0, 70}, true}, {{128, 135}, false}, {{192, 290}, true}, {{320, 384}, true}, {{384, 391}, false}});
  expect_runs(layout, {64, 256}, {{{64, 70}, true}, {{128, 135}, false}, {{192, 248 + 8}, true}});
  expect_runs(layout, {70, 128}, {});
  expect_runs(layout, {290, 320}, {});
  expect_runs(layout, {200, 201}, {{{200, 201}, true}});
}

TEST(ParameterLayout, RunsOfOneClassWithoutPaddingBetweenAreOne) {
  const ParameterLayout layout({matrix("a", 8, 8, 0), matrix("b", 2, 64, 0), matrix("c", 1, 64, 1)});
  expect_runs(layout, {0, 256}, {{{0, 256}, true}});
}

TEST(ParameterLayout, RunsSplitByLearningRate) {
  std::vector<Parameter> parameters = {matrix("q", 3, 7, 0), matrix("k", 2, 7, 0, true), matrix("v", 2, 7, 0, true)};
  parameters[1].lr_multiplier = 0.5;
  const ParameterLayout layout(parameters);
  expect_runs(layout, {0, 64}, {{{0, 21}, true}, {{21, 35}, true}, {{35, 49}, true}});
  expect_runs(layout, {22, 40}, {{{22, 35}, true}, {{35, 40}, true}});
  const std::vector<ParameterLayout::Run> runs = layout.runs({0, 64});
  EXPECT_EQ(runs[0].lr_multiplier, 1);
  EXPECT_EQ(runs[1].lr_multiplier, 0.5);
  EXPECT_EQ(runs[2].lr_multiplier, 1);
  parameters[2].lr_multiplier = 0.5;
  expect_runs(ParameterLayout(parameters), {0, 64}, {{{0, 21}, true}, {{21, 49}, true}});
}

TEST(ParameterLayout, RefusesWhatIsNoLayout) {
  EXPECT_THROW(ParameterLayout({matrix("a", 2, 2, 1)}), Bug) << "units count from 0";
  EXPECT_THROW(ParameterLayout({matrix("a", 2, 2, 0), matrix("b", 2, 2, 2)}), Bug) << "unit 1 is left out";
  EXPECT_THROW(ParameterLayout({matrix("a", 2, 2, 0), matrix("b", 2, 2, 1), matrix("c", 2, 2, 0)}), Bug);
  EXPECT_THROW(ParameterLayout({matrix("a", 2, 2, 0, true)}), Bug) << "joins nothing";
  EXPECT_THROW(ParameterLayout({matrix("a", 2, 2, 0), matrix("b", 2, 2, 1, true)}), Bug) << "joins another unit";
  EXPECT_THROW(ParameterLayout({matrix("a", 2, 2, 0), Parameter{"b", {2, 2, 2}, true, 0, true}}), Bug) << "joined";
  EXPECT_THROW(ParameterLayout({Parameter{"a", {2, 2, 2, 2}, true, 0, false}}), Bug);
  EXPECT_THROW(ParameterLayout({Parameter{"a", {}, true, 0, false}}), Bug);
  for (const std::int64_t cut : {-64, 0, 2, 96})
    EXPECT_THROW(ParameterLayout({{.name = "a", .shape = {8}, .cut = cut}}), Bug);
  EXPECT_THROW(ParameterLayout({matrix("a", 2, 2, 0), {.name = "b", .shape = {2, 2}, .joined = true, .cut = 64}}), Bug)
      << "blocks begin between two cache lines";
}

// 8-bit moments have a scale for each 256 elements of a parameter, however it lies.
TEST(ParameterLayout, BlocksCountFromEachParameter) {
  const ParameterLayout layout({{"embed", {600}, true, 0, false},  // 3 blocks, to 600 of 640
                                {"norm", {7}, false, 0, false},    // 1
                                {"q", {320}, true, 0, false},
                                {"k", {100}, true, 0, true},    // 704; 1024, joined
                                {"v", {300}, true, 0, true}});  // 1124, joined
  const auto at = [&](std::int64_t element) {
    const ParameterLayout::BlockPlace place = layout.block_at(element);
    return std::pair(place.index, place.offset);
  };
  using Place = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(at(0), Place(0, 0));
  EXPECT_EQ(at(599), Place(2, 87));
  EXPECT_EQ(at(600), Place(3, 0)) << "padding belongs to what follows";
  EXPECT_EQ(at(640), Place(3, 0));
  EXPECT_EQ(at(704), Place(4, 0));
  EXPECT_EQ(at(1024), Place(6, 0));
  EXPECT_EQ(at(1400), Place(8, 20));
  EXPECT_EQ(at(layout.elements()), Place(9, 0));
  EXPECT_EQ(layout.blocks({256, 704}), 3);
  EXPECT_EQ(layout.whole_blocks({10, 300}), (Range{0, 512}));
  EXPECT_EQ(layout.whole_blocks({256, 590}), (Range{256, 600}));
  EXPECT_EQ(layout.whole_blocks({1000, 1130}), (Range{960, 1380}));
  EXPECT_EQ(layout.cut_before(500, 256), 256);
  EXPECT_EQ(layout.cut_before(620, 256), 620) << "padding";
  EXPECT_EQ(layout.cut_before(1010, 256), 960);
  EXPECT_EQ(layout.cut_before(1100, 256), 1024);
  EXPECT_EQ(layout.cut_before(1300, 256), 1024) << "where v begins no bucket can";
  EXPECT_EQ(layout.longest_uncut(256), 448) << "k and v";
  EXPECT_EQ(layout.longest_uncut(1), ParameterLayout::alignment);
}

}  // namespace
}  // namespace so
