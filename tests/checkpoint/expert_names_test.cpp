// Experts of a family that is published in both ways, stacked or one by one: what is written has the names that were
// read, inside a model of images and text too.
#include <gtest/gtest.h>

#include "checkpoint/engine_of_model.h"
#include "checkpoint/export.h"
#include "support/errors.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* stacked_fixture = "qwen3-5-moe";

// The fixture's tensors with three matrices an expert.
RawTensors experts_apart() {
  RawTensors all;
  for (const auto& [name, tensor] : raw_tensors(model_directory(stacked_fixture))) {
    const bool gate_up = name.ends_with(".experts.gate_up_proj");
    if (!gate_up && !name.ends_with(".experts.down_proj")) {
      all[name] = tensor;
      continue;
    }
    const std::string prefix = name.substr(0, name.rfind('.') + 1);
    const std::vector<const char*> parts =
        gate_up ? std::vector{".gate_proj.weight", ".up_proj.weight"} : std::vector{".down_proj.weight"};
    const auto count = static_cast<std::int64_t>(parts.size());
    const std::size_t bytes = tensor.bytes.size() / static_cast<std::size_t>(tensor.shape[0] * count);
    std::size_t begin = 0;
    for (std::int64_t expert = 0; expert < tensor.shape[0]; ++expert)
      for (const char* part : parts) {
        const std::string own = prefix + std::to_string(expert) + part;
        all[own] = {own, tensor.dtype, {tensor.shape[1] / count, tensor.shape[2]}, tensor.bytes.substr(begin, bytes)};
        begin += bytes;
      }
  }
  return all;
}

class ExpertNames : public testing::Test {
 protected:
  fs::path make(const std::string& name, const nlohmann::json& text, const RawTensors& tensors) {
    fs::create_directories(temporary_ / name);
    write_file(temporary_ / name / "config.json", text.dump(2) + "\n");
    std::vector<RawTensor> list;
    for (const auto& [key, tensor] : tensors) list.push_back(tensor);
    write_safetensors(temporary_ / name / "model.safetensors", list);
    return temporary_ / name;
  }
  // As Qwen3_5MoeForConditionalGeneration is published.
  fs::path make_wrapped(const std::string& name, const RawTensors& text) {
    nlohmann::json own = config;
    own.erase("architectures");
    const nlohmann::json whole{{"architectures", {"Qwen3_5MoeForConditionalGeneration"}},
                               {"model_type", "qwen3_5_moe"},
                               {"dtype", "float32"},
                               {"tie_word_embeddings", false},
                               {"text_config", own}};
    RawTensors tensors;
    for (auto [key, tensor] : text) {
      const std::string model = "model.";
      tensor.name = key.starts_with(model) ? "model.language_model." + key.substr(model.size()) : key;
      tensors[tensor.name] = tensor;
    }
    for (const char* other : {"model.visual.pos_embed.weight", "mtp.fc.weight"})
      tensors[other] = {other, "BF16", {3}, std::string("\1\x7f\2\3\4\5", 6)};
    return make(name, whole, tensors);
  }

  TemporaryDirectory temporary_;
  const nlohmann::json config = read_json(model_directory(stacked_fixture) / "config.json");
};

TEST_F(ExpertNames, UntrainedIsTheSourceInEveryLayout) {
  const RawTensors stacked = raw_tensors(model_directory(stacked_fixture)), apart = experts_apart();
  ASSERT_GT(apart.size(), stacked.size());
  std::vector<std::vector<std::uint32_t>> masters;
  for (const fs::path& source : {model_directory(stacked_fixture), make("apart", config, apart),
                                 make_wrapped("wrapped", stacked), make_wrapped("wrapped apart", apart)}) {
    SCOPED_TRACE(source);
    EngineOfModel model(source, DType::f32);
    model.load();
    std::vector<std::uint32_t>& all = masters.emplace_back();
    for (const auto& bits : model.bits()) all.insert(all.end(), bits.master.begin(), bits.master.end());
    const fs::path output = temporary_ / "out";
    fs::create_directories(output);
    export_model(model.engine(), model.files(), output);
    const RawTensors expected = raw_tensors(source), got = raw_tensors(output);
    ASSERT_EQ(got.size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      ASSERT_TRUE(got.contains(name)) << name;
      EXPECT_EQ(got.at(name).shape, tensor.shape) << name;
      EXPECT_TRUE(got.at(name).bytes == tensor.bytes) << name;
    }
  }
  for (const auto& other : masters) EXPECT_TRUE(other == masters.front());
}

// What is planned before the weights are opened has the same names, so that patterns are matched by them.
TEST_F(ExpertNames, ThePlannedModelHasThem) {
  const fs::path apart = make("apart", config, experts_apart());
  EXPECT_TRUE(read_spec(model_directory(stacked_fixture)).experts.stacked);
  EXPECT_FALSE(read_spec(apart).experts.stacked);
  const ParameterRules rules{.frozen = parse_patterns("*.experts.*.down_proj.weight", "--freeze")};
  EXPECT_EQ(ModelFiles(apart, rules).layout().trained_parameter_elements() + 3 * 8 * 24 * 12,
            ModelFiles(apart).layout().trained_parameter_elements());
  fs::remove(apart / "model.safetensors");
  EXPECT_TRUE(read_spec(apart).experts.stacked) << "without weights, as is usual";
}

TEST_F(ExpertNames, BothAtOnceAreRefused) {
  RawTensors both = experts_apart();
  for (const auto& [name, tensor] : raw_tensors(model_directory(stacked_fixture))) both[name] = tensor;
  const fs::path directory = make("both", config, both);
  expect_in(refusal([&] { ModelFiles files(directory); }), {"experts.0.", "belongs to no part of"});
}

}  // namespace
}  // namespace so::test
