#include "checkpoint/source_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <random>

#include "checkpoint/engine_of_model.h"
#include "support/errors.h"
#include "support/label.h"

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

std::string model_fixture_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}
SO_LABEL(sweep, test::covered_families("Models/ModelFilesLoad.*/"));
INSTANTIATE_TEST_SUITE_P(Models, ModelFilesLoad,
                         testing::Values("llama-untied", "llama-tied-llama3", "llama-bias", "llama-sharded",
                                         "qwen3-tied", "qwen3-bf16-v4"),
                         model_fixture_name);

// A small tied Llama whose embedding has 256 x 256 elements: room for every half there is, and more than a loading ring
// holds at a time. `bytes_of(name, elements)` are a tensor's.
using BytesOf = std::function<std::string(const std::string& name, std::int64_t elements)>;
void write_small_model(const std::filesystem::path& directory, const std::string& dtype, const BytesOf& bytes_of,
                       const std::vector<RawTensor>& further = {}) {
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

  const auto tensor = [&](const std::string& name, std::vector<std::int64_t> shape) {
    std::int64_t n = 1;
    for (const auto d : shape) n *= d;
    return RawTensor{name, dtype, shape, bytes_of(name, n)};
  };
  const std::string layer = "model.layers.0.";
  std::vector<RawTensor> tensors = {tensor("model.embed_tokens.weight", {256, 256}),
                                    tensor(layer + "input_layernorm.weight", {256}),
                                    tensor(layer + "self_attn.q_proj.weight", {2, 256}),
                                    tensor(layer + "self_attn.k_proj.weight", {2, 256}),
                                    tensor(layer + "self_attn.v_proj.weight", {2, 256}),
                                    tensor(layer + "self_attn.o_proj.weight", {256, 2}),
                                    tensor(layer + "post_attention_layernorm.weight", {256}),
                                    tensor(layer + "mlp.gate_proj.weight", {2, 256}),
                                    tensor(layer + "mlp.up_proj.weight", {2, 256}),
                                    tensor(layer + "mlp.down_proj.weight", {256, 2}),
                                    tensor("model.norm.weight", {256})};
  tensors.insert(tensors.end(), further.begin(), further.end());
  write_safetensors(directory / "model.safetensors", tensors);
}

// Maps all 65536 halves to finite ones: those that are not finite are replaced.
unsigned finite_half(unsigned h) { return (h >> 10 & 31) == 31 ? h & ~0x400u : h; }

// Every finite half.
std::string embedding_of_halves() {
  std::string bytes(131072, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const unsigned half = finite_half(static_cast<unsigned>(i / 2) & 0xffffu);
    bytes[i] = static_cast<char>(i % 2 == 0 ? half : half >> 8);
  }
  return bytes;
}

// Its embedding is every finite half, the rest zeros.
void write_model_of_halves(const std::filesystem::path& directory, const std::vector<RawTensor>& further = {}) {
  write_small_model(
      directory, "F16",
      [](const std::string& name, std::int64_t elements) {
        if (name == "model.embed_tokens.weight") return embedding_of_halves();
        return std::string(static_cast<std::size_t>(elements) * 2, '\0');
      },
      further);
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
      const float expected = half_value(finite_half(h)), got = std::bit_cast<float>(bits.master[h]);
      ASSERT_EQ(bits.master[h], std::bit_cast<std::uint32_t>(expected))
          << h << ": " << got << ", expected " << expected;
      if (compute == DType::bf16) {
        ASSERT_EQ(bits.weights[h], bf16_bits(expected)) << h;
      }
    }
  }
}

// Whatever the files hold, whatever the model computes in and whoever owns the state: every master is the stored value,
// every weight that value rounded once.
TEST(ModelFiles, EveryStoredDtypeLandsForEveryOwner) {
  for (const std::string stored : {"F32", "BF16", "F16"}) {
    TemporaryDirectory temporary;
    std::map<std::string, std::vector<float>> values;
    std::mt19937 random(1);
    write_small_model(temporary.path(), stored, [&](const std::string& name, std::int64_t elements) {
      std::string bytes;
      for (std::int64_t i = 0; i < elements; ++i) {
        const auto u = static_cast<std::uint32_t>(random());
        std::uint32_t bits = 0x3c000000u ^ (u & 0x83ffffffu);  // both signs, 128 exponents, any fraction
        if (stored == "F16") {
          bits = (u & 0x83ffu) | (u >> 16) % 31 << 10;
          values[name].push_back(half_value(bits));
        } else {
          values[name].push_back(std::bit_cast<float>(stored == "F32" ? bits : bits >> 16 << 16));
          if (stored == "BF16") bits >>= 16;
        }
        bytes.append(reinterpret_cast<const char*>(&bits), stored == "F32" ? 4 : 2);
      }
      return bytes;
    });
    for (const DType compute : {DType::f32, DType::bf16}) {
      for (const Owner owner : {Owner::host, Owner::device}) {
        SCOPED_TRACE(stored + " computed in " + std::string(name_of(compute)) + " owned by " +
                     std::string(name_of(owner)));
        // A bucket ends inside of pieces, and pieces inside of buckets.
        EngineOfModel model(temporary.path(), compute, 1536, owner);
        model.load();
        const auto bits = model.bits();
        DeviceWeights device(model.runtime().device(), model.layout(), compute);
        model.files().load(device, model.stream(), model.runtime().host_pool());
        for (int p = 0; p < model.layout().count(); ++p) {
          const std::vector<float>& expected = values.at(model.layout().parameter(p).name);
          const auto& got = bits[static_cast<std::size_t>(p)];
          ASSERT_EQ(got.master.size(), expected.size());
          for (std::size_t i = 0; i < expected.size(); ++i) {
            const auto wide = std::bit_cast<std::uint32_t>(expected[i]);
            const std::uint32_t weight = compute == DType::f32 ? wide : bf16_bits(expected[i]);
            ASSERT_EQ(got.master[i], wide) << model.layout().parameter(p).name << " element " << i;
            ASSERT_EQ(got.weights[i], weight) << model.layout().parameter(p).name << " element " << i;
            std::uint32_t one = 0;
            std::memcpy(&one, static_cast<const std::byte*>(device.weight(p).data()) + i * size_of(compute),
                        size_of(compute));
            ASSERT_EQ(one, weight) << model.layout().parameter(p).name << " element " << i << " alone";
          }
        }
      }
    }
  }
}

// The same as through master weights and their rounding.
TEST(ModelFiles, LoadingGivesTheWeightsThatUploadingGives) {
  for (const Owner owner : {Owner::host, Owner::device}) {
    EngineOfModel model(model_directory("llama-untied"), DType::bf16, 1024, owner);
    model.load();
    const auto loaded = model.bits();
    model.engine().upload_weights(model.stream());
    EXPECT_TRUE(model.bits() == loaded);
  }
}

TEST(ModelFiles, AFileThatEndsInsideATensorIsRefusedByName) {
  for (const Owner owner : {Owner::host, Owner::device}) {
    TemporaryDirectory temporary;
    write_model_of_halves(temporary.path());
    EngineOfModel model(temporary.path(), DType::bf16, 1024, owner);
    std::filesystem::resize_file(temporary.path() / "model.safetensors", 100'000);
    for (const bool engine : {true, false}) {
      DeviceWeights weights(model.runtime().device(), model.layout(), DType::bf16);
      try {
        if (engine)
          model.load();
        else
          model.files().load(weights, model.stream(), model.runtime().host_pool());
        ADD_FAILURE() << "loaded";
      } catch (const Error& error) {
        const std::string message = error.what();
        EXPECT_EQ(message.find('\n'), message.npos);
        for (const char* part : {"model.embed_tokens.weight", "model.safetensors", "ends at byte 100000"})
          EXPECT_NE(message.find(part), message.npos) << message;
      }
    }
  }
}

// Loading takes what the plan is told.
TEST(ModelFiles, LoadingTakesThePlannedRingAndGivesItBack) {
  EngineOfModel model(model_directory("qwen3-tied"), DType::bf16);
  Device& device = model.runtime().device();
  const std::size_t before = device.ledger().held(MemoryKind::pinned);
  const auto dry = make_dry_device(DeviceKind::cpu);
  { const LoadingRing ring = make_loading_ring(*dry, model.layout()); }
  model.load();
  EXPECT_EQ(device.ledger().held(MemoryKind::pinned), before);
  EXPECT_EQ(device.ledger().peaks(MemoryKind::pinned).at("loading ring"),
            dry->ledger().peaks(MemoryKind::pinned).at("loading ring"));
}

// Old checkpoints carry rotary buffers, some tied ones a second copy of the embedding: neither is a parameter.
TEST(ModelFiles, LeavesOutWhatTheConfigDetermines) {
  TemporaryDirectory temporary;
  write_model_of_halves(temporary.path(),
                        {{"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {1}, std::string(4, '\0')},
                         {"lm_head.weight", "F16", {256, 256}, embedding_of_halves()}});
  const ModelFiles files(temporary.path());
  EXPECT_EQ(files.layout().count(), 11);
  EXPECT_EQ(files.layout().find("lm_head.weight"), -1);
  ASSERT_EQ(files.files().copies().size(), 1u);
  EXPECT_EQ(files.files().copies()[0].name, "lm_head.weight");
  EXPECT_EQ(files.layout().parameter(files.files().copies()[0].parameter).name, "model.embed_tokens.weight");
}

TEST(ModelFiles, RefusesATiedHeadOfOtherValues) {
  const std::string same = embedding_of_halves();
  for (const std::size_t at : {std::size_t{0}, same.size() / 2, same.size() - 1}) {
    TemporaryDirectory temporary;
    std::string other = same;
    other[at] = static_cast<char>(other[at] ^ 1);
    write_model_of_halves(temporary.path(), {{"lm_head.weight", "F16", {256, 256}, other}});
    expect_in(refusal([&] { ModelFiles files(temporary.path()); }),
              {"model.safetensors", "'lm_head.weight'", "'model.embed_tokens.weight'", "has other values",
               "set tie_word_embeddings to false"});
  }
  TemporaryDirectory temporary;
  write_model_of_halves(temporary.path(), {{"lm_head.weight", "BF16", {256, 256}, same}});
  expect_in(refusal([&] { ModelFiles files(temporary.path()); }), {"'lm_head.weight'", "another number format"});
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
