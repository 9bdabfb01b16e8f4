// The biases that choose experts are read as they are stored, and written again byte for byte: they are no parameters.
#include "checkpoint/selection_biases.h"

#include <gtest/gtest.h>

#include <limits>

#include "checkpoint/engine_of_model.h"
#include "checkpoint/export.h"
#include "support/errors.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

const std::string first_bias = "model.layers.1.mlp.gate.e_score_correction_bias";

class SelectionBiases : public testing::Test {
 protected:
  fs::path make(const RawTensors& tensors) {
    const fs::path directory = temporary_ / "source";
    fs::create_directories(directory);
    write_file(directory / "config.json", read_file(model_directory("glm4-moe-lite") / "config.json"));
    std::vector<RawTensor> list;
    for (const auto& [key, tensor] : tensors) list.push_back(tensor);
    write_safetensors(directory / "model.safetensors", list);
    return directory;
  }
  void expect_refused(const RawTensors& tensors, const std::vector<std::string>& needles) {
    const fs::path directory = make(tensors);
    expect_in(refusal([&] { ModelFiles files(directory); }), needles);
  }

  const RawTensors tensors = raw_tensors(model_directory("glm4-moe-lite"));
  TemporaryDirectory temporary_;
};

TEST_F(SelectionBiases, AreReadInFp32AndLayersWithoutExpertsHaveZeros) {
  RawTensors changed = tensors;
  // 1, -2 and 0.5 in bf16, twice.
  changed[first_bias] = {first_bias, "BF16", {6}, std::string("\x80\x3f\x00\xc0\x00\x3f\x80\x3f\x00\xc0\x00\x3f", 12)};
  const ModelFiles files(make(changed));
  const std::vector<float>& values = files.spec().selection_biases;
  ASSERT_EQ(values.size(), 3u * 6);
  EXPECT_EQ(std::vector<float>(values.begin(), values.begin() + 12),
            (std::vector<float>{0, 0, 0, 0, 0, 0, 1, -2, 0.5, 1, -2, 0.5}));
  const RawTensor& stored = tensors.at("model.layers.2.mlp.gate.e_score_correction_bias");
  EXPECT_EQ(std::memcmp(values.data() + 12, stored.bytes.data(), stored.bytes.size()), 0);
  EXPECT_TRUE(files.carried_lines().empty()) << "they are a part of the text model";
}

TEST_F(SelectionBiases, AreWrittenAsTheyAreInWhateverFormat) {
  RawTensors with_prediction = tensors;
  with_prediction["model.layers.3.eh_proj.weight"] = {"model.layers.3.eh_proj.weight", "BF16", {1, 2}, "\1\2\3\4"};
  EngineOfModel model(make(with_prediction), DType::bf16);
  model.load();
  fs::create_directories(temporary_ / "out");
  export_model(model.engine(), model.files(), temporary_ / "out");
  const RawTensors written = raw_tensors(temporary_ / "out");
  EXPECT_EQ(written.size(), with_prediction.size());
  for (const auto& [name, tensor] : with_prediction) {
    const bool same = name.ends_with("e_score_correction_bias") || name.starts_with("model.layers.3.");
    ASSERT_TRUE(written.contains(name)) << name;
    EXPECT_EQ(written.at(name).dtype, same ? tensor.dtype : "BF16") << name;
    if (same) {
      EXPECT_EQ(written.at(name).bytes, tensor.bytes) << name;
    }
  }
  EXPECT_EQ(model.files().carried_lines().size(), 2u);
}

TEST_F(SelectionBiases, WrongOnesAreRefused) {
  RawTensors changed = tensors;
  changed.erase(first_bias);
  expect_refused(changed, {"source", "tensor '" + first_bias + "' is missing"});
  changed[first_bias] = {first_bias, "F32", {5}, std::string(20, '\0')};
  expect_refused(changed, {first_bias, "has shape [5], config.json says [6]"});
  changed[first_bias] = {first_bias, "F16", {6}, std::string(12, '\0')};
  expect_refused(changed, {first_bias, "must be float32 or bfloat16"});
  std::string bytes(24, '\0');
  const float infinity = std::numeric_limits<float>::infinity();
  std::memcpy(bytes.data() + 8, &infinity, sizeof infinity);
  changed[first_bias] = {first_bias, "F32", {6}, bytes};
  expect_refused(changed, {first_bias, "not finite"});
  changed = tensors;
  const std::string dense = "model.layers.0.mlp.gate.e_score_correction_bias";
  changed[dense] = {dense, "F32", {6}, std::string(24, '\0')};
  expect_refused(changed, {dense, "belongs to no part of"});
}

}  // namespace
}  // namespace so::test
