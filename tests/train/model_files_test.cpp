#include "train/model_files.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "train/engine_of_model.h"

namespace so::test {
namespace {

class ModelFilesLoad : public testing::TestWithParam<std::string> {};

// Every value of every tensor lands in its place: in host memory as fp32, on the device in either dtype.
TEST_P(ModelFilesLoad, AsAnIndependentReaderReadsThem) {
  const auto directory = model_directory(GetParam());
  const StoredTensors expected = read_model_weights(directory);
  for (const DType compute : {DType::f32, DType::bf16}) {
    EngineOfModel model(directory, compute);
    model.load();
    ASSERT_EQ(model.layout().count(), static_cast<int>(expected.size()));
    const auto bits = model.bits();

    const auto stream = model.runtime().device().create_stream("test");
    DeviceWeights device(model.runtime().device(), model.layout(), compute);
    model.files().load(device, *stream, model.runtime().host_pool());

    for (int p = 0; p < model.layout().count(); ++p) {
      const Parameter& parameter = model.layout().parameter(p);
      const StoredTensor& want = expected.at(parameter.name);
      ASSERT_EQ(parameter.shape, want.shape);
      std::vector<std::uint32_t> wide, narrow;
      for (const float x : want.values) wide.push_back(std::bit_cast<std::uint32_t>(x)), narrow.push_back(bf16_bits(x));
      const auto& on_device = compute == DType::f32 ? wide : narrow;
      const auto& got = bits[static_cast<std::size_t>(p)];
      EXPECT_TRUE(got.master == wide) << parameter.name;
      EXPECT_TRUE(got.weights == on_device) << parameter.name;

      const Tensor view = device.weight(p);
      for (std::size_t i = 0; i < on_device.size(); ++i) {
        std::uint32_t one = 0;
        std::memcpy(&one, static_cast<const std::byte*>(view.data()) + i * size_of(compute), size_of(compute));
        ASSERT_EQ(one, on_device[i]) << parameter.name << " element " << i << " on the device";
      }
    }
  }
}

std::string fixture_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}
INSTANTIATE_TEST_SUITE_P(Models, ModelFilesLoad,
                         testing::Values("llama-untied", "llama-tied-llama3", "llama-bias", "llama-sharded",
                                         "qwen3-tied", "qwen3-bf16-v4"),
                         fixture_name);

// A small tied Llama whose embedding, 256 x 256, has room for every half there is.
void write_model_of_halves(const std::filesystem::path& directory, const std::vector<RawTensor>& further = {}) {
  auto config = read_json(model_directory("llama-tied-llama3") / "config.json");
  for (const auto& [key, value] : std::map<std::string, int>{{"hidden_size", 256},
                                                             {"vocab_size", 256},
                                                             {"intermediate_size", 2},
                                                             {"num_attention_heads", 1},
                                                             {"num_key_value_heads", 1},
                                                             {"head_dim", 2},
                                                             {"num_hidden_layers", 1}})
    config[key] = value;
  config["dtype"] = "float16";
  config["rope_parameters"] = {{"rope_theta", 10000.0}, {"rope_type", "default"}};
  write_file(directory / "config.json", config.dump());

  std::string halves;
  for (unsigned h = 0; h < 65536; ++h) halves += {static_cast<char>(h & 0xffu), static_cast<char>(h >> 8)};
  const auto zeros = [](const std::string& name, std::vector<std::int64_t> shape) {
    std::int64_t n = 2;
    for (const auto d : shape) n *= d;
    return RawTensor{name, "F16", shape, std::string(static_cast<std::size_t>(n), '\0')};
  };
  const std::string layer = "model.layers.0.";
  std::vector<RawTensor> tensors = {{"model.embed_tokens.weight", "F16", {256, 256}, halves},
                                    zeros(layer + "input_layernorm.weight", {256}),
                                    zeros(layer + "self_attn.q_proj.weight", {2, 256}),
                                    zeros(layer + "self_attn.k_proj.weight", {2, 256}),
                                    zeros(layer + "self_attn.v_proj.weight", {2, 256}),
                                    zeros(layer + "self_attn.o_proj.weight", {256, 2}),
                                    zeros(layer + "post_attention_layernorm.weight", {256}),
                                    zeros(layer + "mlp.gate_proj.weight", {2, 256}),
                                    zeros(layer + "mlp.up_proj.weight", {2, 256}),
                                    zeros(layer + "mlp.down_proj.weight", {256, 2}),
                                    zeros("model.norm.weight", {256})};
  tensors.insert(tensors.end(), further.begin(), further.end());
  write_safetensors(directory / "model.safetensors", tensors);
}

// IEEE 754 binary16: 1 bit sign, 5 bits exponent with bias 15, 10 bits fraction.
float half_value(unsigned h) {
  const int exponent = static_cast<int>(h >> 10 & 31), fraction = static_cast<int>(h & 1023);
  double value;
  if (exponent == 31)
    value = fraction == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  else if (exponent == 0)
    value = std::ldexp(fraction, -24);
  else
    value = std::ldexp(1024 + fraction, exponent - 25);
  return static_cast<float>(h >= 32768 ? -value : value);
}

TEST(ModelFiles, EveryHalfIsWidenedExactly) {
  TemporaryDirectory temporary;
  write_model_of_halves(temporary.path());
  for (const DType compute : {DType::f32, DType::bf16}) {
    EngineOfModel model(temporary.path(), compute);
    ASSERT_EQ(model.layout().parameter(0).name, "model.embed_tokens.weight");
    model.load();
    const auto bits = model.bits()[0];
    ASSERT_EQ(bits.master.size(), 65536u);
    for (unsigned h = 0; h < 65536; ++h) {
      const float expected = half_value(h), got = std::bit_cast<float>(bits.master[h]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(got)) << h;
        continue;
      }
      ASSERT_EQ(bits.master[h], std::bit_cast<std::uint32_t>(expected))
          << h << ": " << got << ", expected " << expected;
      if (compute == DType::bf16) {
        ASSERT_EQ(bits.weights[h], bf16_bits(expected)) << h;
      }
    }
  }
}

// Old checkpoints carry rotary buffers, some tied ones a second copy of the embedding: neither is a parameter.
TEST(ModelFiles, LeavesOutWhatTheConfigDetermines) {
  TemporaryDirectory temporary;
  write_model_of_halves(temporary.path(),
                        {{"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1}, std::string(4, '\0')},
                         {"lm_head.weight", "F16", {256, 256}, std::string(131072, '\0')}});
  const ModelFiles files(temporary.path());
  EXPECT_EQ(files.layout().count(), 11);
  EXPECT_EQ(files.layout().find("lm_head.weight"), -1);
}

TEST(ModelFiles, RefusesATensorThatBelongsNowhere) {
  TemporaryDirectory temporary;
  write_model_of_halves(temporary.path(), {{"model.layers.1.extra", "F16", {1}, std::string(2, '\0')}});
  try {
    ModelFiles files(temporary.path());
    ADD_FAILURE() << "opened";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("model.layers.1.extra"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("model.safetensors"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace so::test
