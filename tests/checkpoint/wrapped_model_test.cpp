// A text model inside one of text and more is trained; every other tensor is written again byte for byte.
#include <gtest/gtest.h>

#include <chrono>
#include <set>

#include "checkpoint/engine_of_model.h"
#include "checkpoint/export.h"
#include "io/hf_directory.h"
#include "support/errors.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

bool is_text(const std::string& name) {
  for (const char* part : {"vision_tower.", "multi_modal_projector.", "mtp."})
    if (name.find(part) != std::string::npos) return false;
  return true;
}

// The fixture's tensors under the other names that transformers reads, with more that belong to no text model: extra
// heads, and types in which no parameter is stored.
RawTensors other_layout() {
  RawTensors all;
  for (auto [name, tensor] : raw_tensors(model_directory("gemma3-vision"))) {
    constexpr std::string_view published = "language_model.model.";
    tensor.name =
        name.starts_with(published) ? "model.language_model." + name.substr(published.size()) : "model." + name;
    all[tensor.name] = tensor;
  }
  all["mtp.layers.0.weight"] = {"mtp.layers.0.weight", "BF16", {3}, std::string("\1\x7f\xff\7\xc0\x7f", 6)};  // a NaN
  all["model.vision_tower.ids"] = {"model.vision_tower.ids", "I64", {2}, std::string(16, '\5')};
  all["model.vision_tower.none"] = {"model.vision_tower.none", "F16", {0, 4}, ""};
  return all;
}

class WrappedModel : public testing::Test {
 protected:
  // A directory of the fixture's small files and these tensors.
  fs::path make(const RawTensors& tensors, const std::string& name = "source") {
    const fs::path directory = temporary_ / name;
    fs::create_directories(directory);
    for (const auto& entry : fs::directory_iterator(model_directory("gemma3-vision")))
      if (entry.path().string().find("safetensors") == std::string::npos)
        write_file(directory / entry.path().filename(), read_file(entry.path()));
    std::vector<RawTensor> list;
    for (const auto& [key, tensor] : tensors) list.push_back(tensor);
    write_safetensors(directory / "model.safetensors", list);
    return directory;
  }
  fs::path output() {
    fs::create_directories(temporary_ / "out");
    return temporary_ / "out";
  }
  void expect_refused(const RawTensors& tensors, const std::vector<std::string>& needles) {
    const fs::path directory = make(tensors);
    const std::string message = refusal([&] { ModelFiles files(directory); });
    EXPECT_EQ(message.find('\n'), message.npos) << message;
    expect_in(message, needles);
  }

  TemporaryDirectory temporary_;
};

void expect_equal(const RawTensor& got, const RawTensor& expected) {
  EXPECT_EQ(got.dtype, expected.dtype) << expected.name;
  EXPECT_EQ(got.shape, expected.shape) << expected.name;
  EXPECT_TRUE(got.bytes == expected.bytes) << expected.name;
}

TEST_F(WrappedModel, UntrainedIsTheSourceInBothLayouts) {
  for (const fs::path& source : {model_directory("gemma3-vision"), make(other_layout())}) {
    EngineOfModel model(source, DType::f32);
    model.load();
    export_model(model.engine(), model.files(), output());
    const RawTensors expected = raw_tensors(source), got = raw_tensors(output());
    ASSERT_EQ(got.size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      ASSERT_TRUE(got.contains(name)) << name;
      expect_equal(got.at(name), tensor);
    }
    EXPECT_EQ(read_file(output() / "config.json"), read_file(source / "config.json"));
    EngineOfModel again(output(), DType::f32, 64);
    again.load();
    EXPECT_TRUE(again.bits() == model.bits());
  }
}

TEST_F(WrappedModel, TrainingChangesTheTextModelAlone) {
  const fs::path source = make(other_layout());
  EngineOfModel model(source, DType::bf16, 960);
  model.load();
  model.step(0.5f, 1);
  export_model(model.engine(), model.files(), output(), 20'000);  // in several shards
  const RawTensors expected = raw_tensors(source), got = raw_tensors(output());
  ASSERT_EQ(got.size(), expected.size());
  int text = 0;
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(got.contains(name)) << name;
    if (!is_text(name)) {
      expect_equal(got.at(name), tensor);
      continue;
    }
    ++text;
    EXPECT_EQ(got.at(name).dtype, "BF16") << name;
    EXPECT_NE(got.at(name).bytes, tensor.bytes) << name;
  }
  EXPECT_EQ(text, model.layout().count());
  const auto config = nlohmann::json::parse(read_file(output() / "config.json"));
  auto wanted = nlohmann::json::parse(read_file(source / "config.json"));
  wanted["dtype"] = "bfloat16";
  EXPECT_EQ(config, wanted);

  const HfDirectory whole(output());  // checks the index against the shards
  EXPECT_GT(whole.shards().size(), 2u);
  const auto index = nlohmann::json::parse(read_file(output() / "model.safetensors.index.json"));
  EXPECT_EQ(index.at("weight_map").size(), expected.size());
  EXPECT_EQ(index.at("metadata").at("total_size"), whole.total_bytes());
  EXPECT_EQ(exported_bytes(model.files(), DType::bf16), whole.total_bytes());
}

TEST_F(WrappedModel, ARepeatedHeadIsRepeatedUnderItsNameThere) {
  RawTensors tensors = raw_tensors(model_directory("gemma3-vision"));
  RawTensor head = tensors.at("language_model.model.embed_tokens.weight");
  head.name = "language_model.lm_head.weight";
  tensors[head.name] = head;
  EngineOfModel model(make(tensors), DType::f32);
  model.load();
  model.step(0.5f, 1);
  export_model(model.engine(), model.files(), output());
  const RawTensors got = raw_tensors(output());
  EXPECT_TRUE(got.at(head.name).bytes == got.at("language_model.model.embed_tokens.weight").bytes);
  EXPECT_FALSE(got.at(head.name).bytes == head.bytes);
  tensors[head.name].bytes[0] ^= 1;
  expect_refused(tensors, {"'language_model.lm_head.weight'", "has other values"});
}

TEST_F(WrappedModel, TheLogSaysWhatIsCopiedAndWhatItIsWorth) {
  EXPECT_EQ(ModelFiles(model_directory("gemma3-vision")).carried_lines().size(), 1u);
  const std::vector<std::string> lines = ModelFiles(make(other_layout())).carried_lines();
  ASSERT_EQ(lines.size(), 2u);
  expect_in(lines[0], {"are no part of the text model", "copied as they are"});
  expect_in(lines[1], {"'mtp.layers.0.weight'", "untrained"});
  EXPECT_TRUE(ModelFiles(model_directory("gemma3-v4")).carried_lines().empty());
}

TEST_F(WrappedModel, TensorsThatAreNotWhereTheyShouldBeAreRefusedByName) {
  const RawTensors whole = raw_tensors(model_directory("gemma3-vision"));
  RawTensors tensors = whole;
  tensors["audio_tower.weight"] = {"audio_tower.weight", "F32", {1}, std::string(4, '\0')};
  expect_refused(tensors, {"model.safetensors: tensor 'audio_tower.weight' belongs to no part of "
                           "Gemma3ForConditionalGeneration"});
  tensors = whole;
  tensors.erase("language_model.model.layers.1.mlp.up_proj.weight");
  expect_refused(tensors, {"tensor 'language_model.model.layers.1.mlp.up_proj.weight' is missing"});
  tensors = whole;
  tensors.erase("language_model.model.embed_tokens.weight");
  expect_refused(tensors, {"'language_model.model.embed_tokens.weight' or 'model.language_model.embed_tokens.weight'"});
  // The text model's tensors have the names of one layout.
  tensors = whole;
  RawTensor norm = tensors.at("language_model.model.norm.weight");
  tensors.erase(norm.name);
  norm.name = "model.language_model.norm.weight";
  tensors[norm.name] = norm;
  expect_refused(tensors, {"tensor 'language_model.model.norm.weight' is missing"});
  tensors = whole;
  tensors["language_model.model.norm.weight"].shape = {4, 8};
  expect_refused(tensors, {"'language_model.model.norm.weight' has shape [4, 8], config.json says [32]"});
  // What is copied must be of a type that can be written.
  tensors = whole;
  tensors["vision_tower.mask"] = {"vision_tower.mask", "BOOL", {1}, std::string(1, '\1')};
  expect_refused(tensors, {"'vision_tower.mask' has the element type BOOL, which is not supported"});
}

TEST_F(WrappedModel, AChangedSourceIsNotCopiedAndADeletedOneIs) {
  const fs::path source = make(other_layout());
  const RawTensors expected = raw_tensors(source);
  EngineOfModel model(source, DType::f32);
  model.load();
  const fs::path weights = source / "model.safetensors";
  const auto written = fs::last_write_time(weights);
  fs::last_write_time(weights, written + std::chrono::seconds(5));
  expect_in(refusal([&] { export_model(model.engine(), model.files(), output()); }),
            {weights.string(), "has changed since it was opened"});
  EXPECT_TRUE(fs::is_empty(output()));
  fs::last_write_time(weights, written);
  fs::remove(weights);  // its bytes are there as long as it is open
  export_model(model.engine(), model.files(), output());
  EXPECT_TRUE(raw_tensors(output()).at("mtp.layers.0.weight").bytes == expected.at("mtp.layers.0.weight").bytes);
}

TEST_F(WrappedModel, CheckpointsAreWholeModelsAndResumeWithTheSameParts) {
  const fs::path source = make(other_layout());
  EngineOfModel model(source, DType::bf16);
  model.fill(1);
  {
    CheckpointWriter writer(model.engine(), model.files(), CheckpointDirectory(output()), 0);
    TrainerState state;
    state.step = state.updates = 7;
    state.options = "{}";
    writer.start(state);
    writer.wait();
  }
  const fs::path checkpoint = output() / "checkpoint-7";
  EXPECT_TRUE(raw_tensors(checkpoint).contains("model.vision_tower.ids"));
  EngineOfModel other(source, DType::bf16, 64);
  other.load_checkpoint(checkpoint);
  EXPECT_TRUE(other.bits() == model.bits());
  EngineOfModel from_itself(checkpoint, DType::bf16);  // a model as any other

  RawTensors tensors = other_layout();
  tensors.erase("model.vision_tower.ids");
  EngineOfModel fewer(make(tensors, "fewer"), DType::bf16);
  expect_in(refusal([&] { fewer.load_checkpoint(checkpoint); }),
            {"checkpoint-7 is of another model", "'model.vision_tower.ids'", "fewer"});
  tensors = other_layout();
  tensors["model.vision_tower.ids"].shape = {2, 1};
  EngineOfModel reshaped(make(tensors, "reshaped"), DType::bf16);
  expect_in(refusal([&] { reshaped.load_checkpoint(checkpoint); }),
            {"is of another model", "'model.vision_tower.ids'"});
}

}  // namespace
}  // namespace so::test
