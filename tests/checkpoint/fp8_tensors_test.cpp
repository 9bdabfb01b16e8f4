// Model directories with tensors in FP8: as transformers made two of them (fixtures/models), and damaged.
#include "checkpoint/fp8_tensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/engine_of_model.h"
#include "support/errors.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

fs::path fp8_directory(const std::string& name) { return model_fixture(name) / "fp8"; }

// The value of element i of a matrix that is in FP8, from its bytes and those of its scales.
float fp8_element(const RawTensors& tensors, const std::string& name, const std::vector<std::int64_t>& block,
                  std::size_t i) {
  const RawTensor &codes = tensors.at(name), &scales = tensors.at(name + "_scale_inv");
  const auto code = static_cast<unsigned char>(codes.bytes[i]);
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const double value = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  const auto columns = static_cast<std::size_t>(codes.shape[1]);
  std::size_t at = 0;
  if (!block.empty()) {
    const auto rows = static_cast<std::size_t>(block[0]), across = static_cast<std::size_t>(block[1]);
    at = i / columns / rows * (columns / across) + i % columns / across;
  }
  float scale = 0;
  if (scales.dtype == "BF16")
    std::memcpy(reinterpret_cast<char*>(&scale) + 2, scales.bytes.data() + 2 * at, 2);
  else
    std::memcpy(&scale, scales.bytes.data() + 4 * at, 4);
  return static_cast<float>((code & 128) != 0 ? -value : value) * scale;
}

TEST(Fp8Model, LoadsAsCodesTimesScales) {
  for (const auto& [fixture, block] :
       {std::pair{"ministral3-fp8", std::vector<std::int64_t>{}}, {"qwen3-fp8", {16, 8}}}) {
    const RawTensors stored = raw_tensors(fp8_directory(fixture));
    for (const DType compute : {DType::f32, DType::bf16}) {
      EngineOfModel model(fp8_directory(fixture), compute);
      model.load();
      EXPECT_EQ(model.files().files().in_fp8(), 7);
      EXPECT_EQ(model.files().files().input_scales(), block.empty() ? 7 : 0);
      const auto bits = model.bits();
      int in_fp8 = 0;
      for (int p = 0; p < model.layout().count(); ++p) {
        const std::string& name = model.files().files().name_of(p);
        if (stored.at(name).dtype != "F8_E4M3") continue;
        ++in_fp8;
        const auto& got = bits[static_cast<std::size_t>(p)];
        ASSERT_EQ(got.master.size(), stored.at(name).bytes.size());
        for (std::size_t i = 0; i < got.master.size(); ++i) {
          const float value = fp8_element(stored, name, block, i);
          ASSERT_EQ(got.master[i], std::bit_cast<std::uint32_t>(value)) << name << " " << i;
          ASSERT_EQ(got.weights[i], compute == DType::f32 ? got.master[i] : bf16(value).bits) << name << " " << i;
        }
      }
      EXPECT_EQ(in_fp8, 7);
    }
  }
}

class Fp8Damage : public testing::Test {
 protected:
  // The directory of a fixture with other tensors, and another quantization_config if it is not null.
  fs::path make(const RawTensors& tensors, const nlohmann::json& quantization = nullptr) {
    const fs::path directory = temporary_ / std::to_string(made_++);
    fs::create_directory(directory);
    auto config = nlohmann::json::parse(read_file(fp8_directory("qwen3-fp8") / "config.json"));
    if (!quantization.is_null()) config["quantization_config"] = quantization;
    write_file(directory / "config.json", config.dump());
    std::vector<RawTensor> all;
    for (const auto& [name, tensor] : tensors) all.push_back(tensor);
    write_safetensors(directory / "model.safetensors", all);
    return directory;
  }
  void refused(const RawTensors& tensors, const std::vector<std::string>& needles,
               const nlohmann::json& quantization = nullptr) {
    const fs::path directory = make(tensors, quantization);
    expect_in(refusal([&] {
                EngineOfModel model(directory, DType::bf16);
                model.load();
              }),
              needles);
  }

  static constexpr auto weight = "model.layers.0.mlp.up_proj.weight";
  static constexpr auto scales = "model.layers.0.mlp.up_proj.weight_scale_inv";
  TemporaryDirectory temporary_;
  int made_ = 0;
  const RawTensors good_ = raw_tensors(fp8_directory("qwen3-fp8"));
};

TEST_F(Fp8Damage, ScalesThatDoNotFitAreRefusedByName) {
  RawTensors tensors = good_;
  tensors.erase(scales);
  refused(tensors, {"'model.layers.0.mlp.up_proj.weight_scale_inv' is missing", weight, "FP8"});
  tensors = good_;
  tensors[scales].shape = {4, 3};  // of [3, 4]
  refused(tensors, {"model.safetensors", scales, "[4, 3]", "[3, 4] of blocks of 16 x 8", "[48, 32]"});
  tensors[scales].shape = {12};
  refused(tensors, {scales, "[12]", "[3, 4]"});
  tensors = good_;
  tensors[scales].dtype = "I32";
  refused(tensors, {scales, "int32", "float32 or bfloat16"});
  for (const std::uint32_t bad : {0x7f800000u, 0xffc00000u}) {
    tensors = good_;
    std::memcpy(tensors[scales].bytes.data() + 20, &bad, sizeof bad);
    refused(tensors, {"model.safetensors", scales, "not finite (element 5)"});
  }
}

TEST_F(Fp8Damage, MatricesThatDoNotFitAreRefusedByName) {
  RawTensors tensors = good_;
  tensors[weight].shape = {32, 48};
  refused(tensors, {"model.safetensors", weight, "[32, 48]", "config.json says [48, 32]"});
  tensors = good_;
  tensors[weight].bytes[100] = '\x7f';
  refused(tensors, {"model.safetensors", weight, "not finite", "element 100"});
  tensors = good_;
  tensors[weight].dtype = "F8_E5M2";
  refused(tensors, {weight, "F8_E5M2", "not supported"});
  tensors = good_;
  RawTensor& norm = tensors["model.norm.weight"];
  norm.dtype = "F8_E4M3";
  norm.bytes.resize(32);
  refused(tensors, {"'model.norm.weight'", "only matrices"});
  // Scales of what is not in FP8 say that something is amiss.
  tensors = good_;
  tensors[weight].dtype = "BF16";
  tensors[weight].bytes.resize(2 * tensors[weight].bytes.size());
  refused(tensors, {scales, "belongs to no part"});
}

// The tensors say what is in FP8, and config.json how large blocks are.
TEST_F(Fp8Damage, BlocksAreAsConfigSays) {
  const nlohmann::json quantization{{"quant_method", "fp8"}, {"weight_block_size", {16, 8}}};
  const auto loads = [&](const nlohmann::json& config) {
    EngineOfModel model(make(good_, config), DType::f32);
    model.load();
    return model.files().files().in_fp8();
  };
  EXPECT_EQ(loads(quantization), 7);
  auto other = quantization;
  other["weight_block_size"] = {8, 8};
  refused(good_, {"_scale_inv", "blocks of 8 x 8"}, other);
  other["weight_block_size"] = nullptr;
  refused(good_, {"_scale_inv", "blocks of 128 x 128"}, other);
  for (const nlohmann::json& wrong : {nlohmann::json{16}, nlohmann::json{0, 8}, nlohmann::json{16, -8}}) {
    other["weight_block_size"] = wrong;
    refused(good_, {"config.json: quantization_config.weight_block_size", "[128, 128]"}, other);
  }
  other = quantization;
  other["quant_method"] = "awq";
  refused(good_, {"config.json: quantization_config", "'awq'", "only 'fp8'", "unquantised"}, other);
}

}  // namespace
}  // namespace so::test
