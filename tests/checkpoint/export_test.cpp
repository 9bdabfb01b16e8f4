#include "checkpoint/export.h"

#include <gtest/gtest.h>

#include <set>

#include "checkpoint/engine_of_model.h"
#include "io/own_files.h"
#include "support/errors.h"
#include "support/label.h"

namespace so::test {
namespace {

std::vector<std::string> keys(const std::string& text) {
  std::vector<std::string> all;
  const auto object = nlohmann::ordered_json::parse(text);
  for (const auto& [key, value] : object.items()) all.push_back(key);
  return all;
}

// Same keys in the same order, same values but for the dtype, which stands under the name it had.
void expect_config(const std::filesystem::path& got, const std::filesystem::path& source, const std::string& dtype) {
  const std::string got_text = read_file(got), source_text = read_file(source);
  EXPECT_EQ(keys(got_text), keys(source_text));
  auto expected = nlohmann::json::parse(source_text);
  const char* key = expected.contains("dtype") ? "dtype" : "torch_dtype";
  ASSERT_TRUE(expected.contains(key));
  expected[key] = dtype;
  EXPECT_EQ(nlohmann::json::parse(got_text), expected);
}

class Export : public testing::TestWithParam<std::string> {
 protected:
  std::filesystem::path source() const { return model_directory(GetParam()); }
  TemporaryDirectory temporary_;
};

TEST_P(Export, UntrainedIsTheSource) {
  EngineOfModel model(source(), DType::f32);
  model.load();
  export_model(model.engine(), model.files(), temporary_.path());
  const StoredTensors expected = read_model_weights(source()), got = read_model_weights(temporary_.path());
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_EQ(got.at(name).dtype, "F32");
    EXPECT_EQ(got.at(name).shape, tensor.shape) << name;
    ASSERT_EQ(std::memcmp(got.at(name).values.data(), tensor.values.data(), tensor.values.size() * sizeof(float)), 0)
        << name;
  }
  expect_config(temporary_ / "config.json", source() / "config.json", "float32");
  EXPECT_EQ(read_file(temporary_ / "generation_config.json"), read_file(source() / "generation_config.json"));
  for (const auto& entry : std::filesystem::directory_iterator(temporary_.path()))
    EXPECT_TRUE(entry.is_regular_file()) << entry.path() << " was left behind";

  // And it is a model again, of the same bits.
  EngineOfModel again(temporary_.path(), DType::f32, 64);
  again.load();
  EXPECT_TRUE(again.bits() == model.bits());
}

TEST_P(Export, LinksAreNeitherReplacedNorFollowed) {
  EngineOfModel model(source(), DType::bf16);
  model.load();
  write_file(temporary_ / "precious", "kept");
  for (const char* name : {"config.json", "generation_config.json"}) {
    std::filesystem::create_symlink("precious", temporary_ / name);
    EXPECT_NE(refusal([&] {
                export_model(model.engine(), model.files(), temporary_.path());
              }).find(std::string(name) + " is a link, which is neither"),
              std::string::npos);
    EXPECT_TRUE(std::filesystem::is_symlink(temporary_ / name));
    std::filesystem::remove(temporary_ / name);
  }
  EXPECT_EQ(read_file(temporary_ / "precious"), "kept");
}

TEST_P(Export, Bf16IsRoundedToNearestEven) {
  EngineOfModel model(source(), DType::bf16);
  model.load();
  export_model(model.engine(), model.files(), temporary_.path());
  const StoredTensors expected = read_model_weights(source()), got = read_model_weights(temporary_.path());
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    EXPECT_EQ(got.at(name).dtype, "BF16") << name;
    ASSERT_EQ(got.at(name).values.size(), tensor.values.size());
    for (std::size_t i = 0; i < tensor.values.size(); ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(got.at(name).values[i]) >> 16, bf16_bits(tensor.values[i]))
          << name << ' ' << i;
  }
  expect_config(temporary_ / "config.json", source() / "config.json", "bfloat16");
}

std::string fixture_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}
SO_LABEL(sweep, test::covered_families("Models/Export.*/"));
INSTANTIATE_TEST_SUITE_P(Models, Export,
                         testing::Values("llama-untied", "llama-v4", "llama-bias", "llama-sharded", "qwen3-tied",
                                         "qwen3-bf16-v4"),
                         fixture_name);

TEST(ExportModel, TiedModelsHaveNoHeadOfTheirOwn) {
  TemporaryDirectory temporary;
  EngineOfModel model(model_directory("qwen3-tied"), DType::f32);
  model.load();
  export_model(model.engine(), model.files(), temporary.path());
  const auto tensors = read_model_weights(temporary.path());
  EXPECT_TRUE(tensors.contains("model.embed_tokens.weight"));
  EXPECT_FALSE(tensors.contains("lm_head.weight"));
  EXPECT_TRUE(read_model_weights(model_directory("llama-untied")).contains("lm_head.weight"))
      << "else this shows nothing";
}

// A file that repeats the tied embedding gets it back so, as it is after training and not as it was.
TEST(ExportModel, ATiedHeadThatTheSourceRepeatsIsRepeated) {
  TemporaryDirectory source, temporary;
  for (const auto& entry : std::filesystem::directory_iterator(model_directory("qwen3-tied")))
    std::filesystem::copy(entry.path(), source / entry.path().filename().string());
  std::vector<RawTensor> tensors;
  const StoredTensors stored = read_model_weights(model_directory("qwen3-tied"));
  const auto& embedding = stored.at("model.embed_tokens.weight");
  for (const auto& [name, t] : stored)
    tensors.push_back({name, "F32", t.shape,
                       std::string(reinterpret_cast<const char*>(t.values.data()), t.values.size() * sizeof(float))});
  const auto* bytes = reinterpret_cast<const char*>(embedding.values.data());
  tensors.push_back({"lm_head.weight", "F32", embedding.shape, std::string(bytes, embedding.values.size() * 4)});
  std::filesystem::remove(source / "model.safetensors");
  write_safetensors(source / "model.safetensors", tensors);

  EngineOfModel model(source.path(), DType::f32, 960);
  model.load();
  model.step(0.5f, 1);
  export_model(model.engine(), model.files(), temporary.path());
  const StoredTensors got = read_model_weights(temporary.path());
  EXPECT_EQ(got.size(), tensors.size());
  EXPECT_EQ(got.at("lm_head.weight").shape, embedding.shape);
  EXPECT_EQ(got.at("lm_head.weight").values, got.at("model.embed_tokens.weight").values);
  EXPECT_NE(got.at("lm_head.weight").values, embedding.values);
}

TEST(ExportModel, ShardsHoldWhatTheyMay) {
  TemporaryDirectory temporary, whole;
  EngineOfModel model(model_directory("llama-untied"), DType::bf16, 448);
  model.load();
  export_model(model.engine(), model.files(), whole.path());
  constexpr std::uint64_t limit = 20'000;
  export_model(model.engine(), model.files(), temporary.path(), limit);
  EXPECT_TRUE(std::filesystem::exists(whole / "model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(temporary / "model.safetensors"));
  const HfDirectory written(temporary.path());
  EXPECT_GT(written.shards().size(), 1u);
  for (const SafetensorsReader& shard : written.shards())
    EXPECT_TRUE(shard.data_bytes() <= limit || shard.names().size() == 1) << shard.path();
  const auto of = [](const StoredTensors& tensors) {
    std::map<std::string, std::vector<float>> values;
    for (const auto& [name, t] : tensors) values[name] = t.values;
    return values;
  };
  EXPECT_EQ(of(read_model_weights(temporary.path())), of(read_model_weights(whole.path())));
}

TEST(ExportModel, WritesTheWeightsOfNowNotThoseLoaded) {
  TemporaryDirectory temporary;
  EngineOfModel model(model_directory("llama-untied"), DType::f32);
  model.load();
  model.step(0.5f, 1);
  export_model(model.engine(), model.files(), temporary.path());
  EngineOfModel again(temporary.path(), DType::f32);
  again.load();
  EXPECT_TRUE(again.bits()[0].master == model.bits()[0].master);
  EXPECT_FALSE(again.bits()[0].master == [] {
    EngineOfModel source(model_directory("llama-untied"), DType::f32);
    source.load();
    return source.bits()[0].master;
  }());
}

// Shards and index of our earlier model would contradict the new one; what is none of ours stays.
TEST(ExportModel, ReplacesAnEarlierModelInTheDirectory) {
  TemporaryDirectory temporary;
  {
    EngineOfModel earlier(model_directory("llama-untied"), DType::f32);
    earlier.load();
    export_model(earlier.engine(), earlier.files(), temporary.path(), 20'000);
  }
  ASSERT_TRUE(std::filesystem::exists(temporary / "model.safetensors.index.json"));
  std::filesystem::create_directories(temporary / "checkpoint-3");
  for (const char* file : {"checkpoint-3/model.safetensors", "metrics.jsonl", "notes.txt", "model-q4.safetensors",
                           "model-00001-of-00999.safetensors"})
    write_file(temporary / file, "not of the export");

  EngineOfModel model(model_directory("qwen3-tied"), DType::f32);
  model.load();
  export_model(model.engine(), model.files(), temporary.path());
  FileNames names;
  for (const auto& [name, bytes] : snapshot(temporary.path()))
    if (bytes != "(directory)") names.insert(name);
  const FileNames exported{"checksums.json", "config.json", "generation_config.json", "model.safetensors"};
  FileNames all{own_files_record,       "checkpoint-3/model.safetensors",
                "metrics.jsonl",        "model-00001-of-00999.safetensors",
                "model-q4.safetensors", "notes.txt"};
  all.insert(exported.begin(), exported.end());
  EXPECT_EQ(names, all);
  EXPECT_EQ(read_file(temporary / "checkpoint-3" / "model.safetensors"), "not of the export");
  for (const std::string& name : exported) EXPECT_TRUE(OwnFiles(temporary.path()).read()->contains(name)) << name;
  EXPECT_NO_THROW(ModelFiles(temporary.path()));
}

TEST(ConfigWithDtype, KeepsKeysAndTheirOrder) {
  EXPECT_EQ(
      config_with_dtype(R"({"b": 1, "torch_dtype": "float32", "a": {"z": 1e-06, "y": null}})", DType::bf16),
      "{\n  \"b\": 1,\n  \"torch_dtype\": \"bfloat16\",\n  \"a\": {\n    \"z\": 1e-06,\n    \"y\": null\n  }\n}\n");
  EXPECT_EQ(config_with_dtype(R"({"dtype": "float16", "b": [1, 2.5]})", DType::f32),
            "{\n  \"dtype\": \"float32\",\n  \"b\": [\n    1,\n    2.5\n  ]\n}\n");
}

TEST(ConfigWithDtype, LeavesOutHowTheSourceWasQuantised) {
  EXPECT_EQ(config_with_dtype(R"({"dtype": "bfloat16", "quantization_config": {"quant_method": "mxfp4"}, "a": 1})",
                              DType::bf16),
            "{\n  \"dtype\": \"bfloat16\",\n  \"a\": 1\n}\n");
}

TEST(ConfigWithDtype, LeavesNumbersThatOnlyPythonReadsAsTheyAre) {
  EXPECT_EQ(config_with_dtype(R"({"dtype": "float16", "a": NaN, "b": [1000000000000000019884624838656, -Infinity]})",
                              DType::bf16),
            "{\n  \"dtype\": \"bfloat16\",\n  \"a\": NaN,\n  \"b\": [\n    1000000000000000019884624838656,\n"
            "    -Infinity\n  ]\n}\n");
}

TEST(ConfigWithDtype, NeitherOrBothNames) {
  EXPECT_EQ(config_with_dtype(R"({"a": 1})", DType::bf16), "{\n  \"a\": 1,\n  \"dtype\": \"bfloat16\"\n}\n");
  EXPECT_EQ(config_with_dtype(R"({"torch_dtype": "float16", "dtype": "float16"})", DType::bf16),
            "{\n  \"torch_dtype\": \"bfloat16\",\n  \"dtype\": \"bfloat16\"\n}\n")
      << "two that contradict each other are worse than one";
}

}  // namespace
}  // namespace so::test
