// Which tensors are taken for which parameters, and what is refused.
#include "checkpoint/source_tensors.h"

#include <gtest/gtest.h>

#include "checkpoint/engine_of_model.h"
#include "support/errors.h"

namespace so::test {
namespace {

// A layer's norm and the two parameters of its experts: [experts, columns, rows].
ParameterLayout experts_layout() {
  return ParameterLayout({{"norm", {4}, false, 0, false},
                          {"experts.up", {2, 64, 6}, true, 0, false},
                          {"experts.down", {2, 32, 64}, true, 0, false}});
}

RawTensor raw(const std::string& name, const std::string& dtype, const std::vector<std::int64_t>& shape) {
  std::size_t bytes = dtype == "U8" ? 1 : dtype == "F32" ? 4 : 2;
  for (const std::int64_t d : shape) bytes *= static_cast<std::size_t>(d);
  return {name, dtype, shape, std::string(bytes, '\1')};
}

class ParameterFilesTest : public testing::Test {
 protected:
  // As the layout wants it: up quantised, down not.
  std::vector<RawTensor> tensors_{raw("experts.up_scales", "U8", {2, 6, 2}), raw("norm", "F32", {4}),
                                  raw("experts.down", "BF16", {2, 32, 64}),
                                  raw("experts.up_blocks", "U8", {2, 6, 2, 16})};

  RawTensor& tensor(const std::string& name) {
    for (RawTensor& t : tensors_)
      if (t.name == name) return t;
    throw std::runtime_error(name);
  }
  void remove(const std::string& name) {
    std::erase_if(tensors_, [&](const RawTensor& t) { return t.name == name; });
  }
  HfDirectory directory() {
    write_file(temporary_ / "config.json", "{}");
    write_safetensors(temporary_ / "model.safetensors", tensors_);
    return HfDirectory(temporary_.path());
  }
  std::string refused(const std::vector<ParameterFiles::Copy>& copies = {}) {
    const HfDirectory opened = directory();
    const std::string message = refusal([&] { ParameterFiles(opened, experts_layout(), copies, "TestModel"); });
    EXPECT_EQ(message.find('\n'), message.npos) << message;
    return message;
  }

  TemporaryDirectory temporary_;
};

TEST_F(ParameterFilesTest, TakesQuantisedExpertsAsTheirParameter) {
  const HfDirectory opened = directory();
  const ParameterLayout layout = experts_layout();
  const ParameterFiles files(opened, layout, {}, "TestModel");
  EXPECT_EQ(files.quantised(), 1);
  EXPECT_EQ(files.bytes(), opened.total_bytes());
  std::vector<DType> asked;
  const auto requests = files.requests([&](DType stored) {
    asked.push_back(stored);
    return WeightForms{true, false};
  });
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(asked, (std::vector{DType::f32, DType::bf16, DType::bf16}));
  EXPECT_EQ(requests[0].tensor, "norm");
  EXPECT_EQ(requests[1].tensor, "experts.down");
  EXPECT_EQ(requests[1].at, layout.range(2).begin);
  EXPECT_TRUE(requests[1].scales.empty());
  EXPECT_EQ(requests[2].tensor, "experts.up_blocks");
  EXPECT_EQ(requests[2].scales, "experts.up_scales");
  EXPECT_EQ(requests[2].at, layout.range(1).begin);
  EXPECT_TRUE(requests[2].forms.wide);
  // 2 x 6 x 64 halves of bytes and a scale for 32 of them, of one of two experts; down's is 64 x 32.
  EXPECT_EQ(largest_packed_bytes(layout), 64u * 32 / 2 + 64 * 32 / 32);
}

TEST_F(ParameterFilesTest, RefusesOneOfBlocksAndScalesAlone) {
  remove("experts.up_scales");
  expect_in(refused(), {"'experts.up_scales' is missing", "'experts.up_blocks'", "model.safetensors"});
  tensors_.push_back(raw("experts.up_scales", "U8", {2, 6, 2}));
  remove("experts.up_blocks");
  expect_in(refused(), {"'experts.up_blocks' is missing", "'experts.up_scales'", "model.safetensors"});
}

TEST_F(ParameterFilesTest, RefusesAParameterThatIsThereTwice) {
  tensors_.push_back(raw("experts.up", "BF16", {2, 64, 6}));
  expect_in(refused(), {"model.safetensors", "'experts.up' is there twice", "'experts.up_blocks'"});
}

TEST_F(ParameterFilesTest, RefusesWrongCounts) {
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{
           {1, 6, 2, 16}, {2, 5, 2, 16}, {2, 6, 3, 16}, {2, 6, 2, 15}, {2, 6, 32}, {2, 12, 16}, {2, 6, 2, 16, 1}, {}}) {
    tensor("experts.up_blocks") = raw("experts.up_blocks", "U8", shape);
    expect_in(refused(),
              {"model.safetensors", "'experts.up_blocks' has shape " + shape_string(shape), "[2, 6, 2, 16]"});
  }
  tensor("experts.up_blocks") = raw("experts.up_blocks", "U8", {2, 6, 2, 16});
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{2, 6, 1}, {2, 2, 6}, {24}, {2, 6, 2, 1}}) {
    tensor("experts.up_scales") = raw("experts.up_scales", "U8", shape);
    expect_in(refused(), {"model.safetensors", "'experts.up_scales' has shape " + shape_string(shape), "[2, 6, 2]"});
  }
}

TEST_F(ParameterFilesTest, RefusesOtherTypes) {
  tensor("experts.up_blocks") = raw("experts.up_blocks", "BF16", {2, 6, 2, 16});
  expect_in(refused(), {"model.safetensors", "'experts.up_blocks' is bfloat16", "uint8"});
  tensor("experts.up_blocks") = raw("experts.up_blocks", "U8", {2, 6, 2, 16});
  tensor("experts.up_scales") = raw("experts.up_scales", "F32", {2, 6, 2});
  expect_in(refused(), {"model.safetensors", "'experts.up_scales' is float32", "uint8"});
  tensor("experts.up_scales") = raw("experts.up_scales", "U8", {2, 6, 2});
  tensor("experts.down") = raw("experts.down", "U8", {2, 32, 64});
  expect_in(refused(), {"model.safetensors", "'experts.down' is uint8", "weights must be"});
}

TEST_F(ParameterFilesTest, QuantisesNothingButExperts) {
  tensor("norm") = raw("norm_blocks", "U8", {4});
  expect_in(refused(), {"'norm' is missing"});
}

TEST_F(ParameterFilesTest, RefusesAWidthThatBlocksDoNotMakeUp) {
  const HfDirectory opened = directory();
  const ParameterLayout layout({{"experts.up", {2, 48, 6}, true, 0, false}});
  expect_in(refusal([&] { ParameterFiles(opened, layout, {}, "TestModel"); }),
            {"'experts.up_blocks'", "[2, 48, 6]", "no multiple of 32"});
}

TEST_F(ParameterFilesTest, KnowsCopiesAndRefusesStrangers) {
  RawTensor copy = tensor("norm");
  copy.name = "head";
  tensors_.push_back(copy);
  expect_in(refused(), {"model.safetensors", "'head' belongs to no part of TestModel"});
  const HfDirectory opened = directory();
  const ParameterFiles files(opened, experts_layout(), {{"head", 0}, {"other", 0}}, "TestModel");
  ASSERT_EQ(files.copies().size(), 1u);
  EXPECT_EQ(files.copies()[0].name, "head");
  EXPECT_EQ(files.requests([](DType) { return WeightForms{}; }).size(), 3u);
  tensor("head").bytes.back() ^= 1;
  expect_in(refused({{"head", 0}}), {"'head' has other values", "remove 'head'"});
  tensor("head") = raw("head", "BF16", {5});
  expect_in(refused({{"head", 0}}), {"'head' has shape [5]", "[4]"});
}

TEST_F(ParameterFilesTest, BlocksAndScalesMayLieInDifferentFiles) {
  write_file(temporary_ / "config.json", "{}");
  nlohmann::json index;
  std::vector<RawTensor> shards[2];
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    shards[i % 2].push_back(tensors_[i]);
    index["weight_map"][tensors_[i].name] = std::to_string(i % 2) + ".safetensors";
  }
  for (int s = 0; s < 2; ++s) write_safetensors(temporary_ / (std::to_string(s) + ".safetensors"), shards[s]);
  write_file(temporary_ / "model.safetensors.index.json", index.dump());
  const HfDirectory opened(temporary_.path());
  const auto requests =
      ParameterFiles(opened, experts_layout(), {}, "TestModel").requests([](DType) { return WeightForms{}; });
  ASSERT_EQ(requests.size(), 3u);
  const auto blocks = std::find_if(requests.begin(), requests.end(), [](const auto& r) { return !r.scales.empty(); });
  ASSERT_NE(blocks, requests.end());
  EXPECT_EQ(blocks->file->path().filename(), "1.safetensors");
  EXPECT_EQ(blocks->scales_file->path().filename(), "0.safetensors");
}

}  // namespace
}  // namespace so::test
