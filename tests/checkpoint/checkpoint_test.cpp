#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "base/error.h"
#include "checkpoint/engine_of_model.h"
#include "support/errors.h"
#include "support/stored_tensor.h"

namespace so::test {
namespace {

// The message of the Error that `action` throws.

TrainerState state_at(std::int64_t step) {
  TrainerState state;
  state.step = step;
  state.updates = step - 1;
  state.skipped_in_a_row = 1;
  state.sampler = {2, 17};
  state.tokens = 12345;
  state.data_key = 0xfedcba9876543210u;
  state.options = R"({"lr":1e-05})";
  return state;
}

class Checkpoints : public testing::TestWithParam<DType> {
 protected:
  // checkpoint-7 of a filled engine.
  std::filesystem::path write(EngineOfModel& model) {
    CheckpointWriter writer(model.engine(), model.files(), CheckpointDirectory(temporary_.path()), 0);
    writer.start(state_at(7));
    writer.wait();
    return temporary_ / "checkpoint-7";
  }
  TemporaryDirectory temporary_;
};

TEST_P(Checkpoints, RoundTripIsBitForBit) {
  for (const char* fixture : {"qwen3-tied", "llama-sharded"})
    for (const DType moments : {DType::f32, DType::bf16, DType::u8}) {
      SCOPED_TRACE(testing::Message() << fixture << ", moments " << name_of(moments));
      EngineOfModel model(model_directory(fixture), nullptr, GetParam(), moments);
      model.fill(1);
      const auto before = model.bits();
      const auto path = write(model);
      EXPECT_EQ(std::filesystem::exists(path / "master.safetensors"), GetParam() == DType::bf16);
      for (const Owner owner : {Owner::host, Owner::device}) {
        const std::int64_t other_buckets = moments == DType::u8 ? 512 : 64;
        EngineOfModel other(model_directory(fixture), nullptr, GetParam(), moments, other_buckets, owner);
        other.load_checkpoint(path);
        EXPECT_TRUE(other.bits() == before) << name_of(owner);
      }

      const TrainerState state = read_trainer_state(path / trainer_state_file);
      EXPECT_EQ(to_json(state), to_json(state_at(7)));
      EXPECT_EQ(state.data_key, 0xfedcba9876543210u);
      EXPECT_EQ(state.sampler, (SamplerState{2, 17}));
    }
}

// What another format has written is read, and moments that went through a wider one and back are the same: bf16 holds
// what 8 bits do.
TEST_P(Checkpoints, MomentsAreReadInAnyFormat) {
  for (const DType kept : {DType::bf16, DType::u8}) {
    SCOPED_TRACE(name_of(kept));
    EngineOfModel model(model_directory("llama-bias"), nullptr, GetParam(), kept);
    model.fill(2);
    const auto before = model.bits();
    for (const DType other : {DType::f32, DType::bf16, DType::u8}) {
      std::filesystem::remove_all(temporary_ / "checkpoint-7");
      EngineOfModel through(model_directory("llama-bias"), nullptr, GetParam(), other, 512, Owner::device);
      through.load_checkpoint(write(model));
      std::filesystem::remove_all(temporary_ / "checkpoint-7");
      EngineOfModel back(model_directory("llama-bias"), nullptr, GetParam(), kept);
      back.load_checkpoint(write(through));
      EXPECT_EQ(back.bits() == before, kept == DType::u8 || other != DType::u8) << name_of(other);
    }
    std::filesystem::remove_all(temporary_ / "checkpoint-7");
  }
}

TEST_P(Checkpoints, ScalesThatAreNoneAreRefused) {
  EngineOfModel model(model_directory("llama-bias"), nullptr, GetParam(), DType::u8);
  model.fill(5);
  const auto path = write(model);
  const auto file = path / "exp_avg.safetensors";
  for (const char* fault : {"missing", "dtype", "shape", "negative", "infinite"}) {
    SCOPED_TRACE(fault);
    std::vector<RawTensor> tensors;
    for (const Parameter& p : model.layout().parameters()) {
      const auto elements = static_cast<std::size_t>(p.size()), blocks = (elements + 255) / 256;
      tensors.push_back({p.name, "U8", p.shape, std::string(elements, '\1')});
      RawTensor scales{
          p.name + ".moment_scales", "F32", {static_cast<std::int64_t>(blocks)}, std::string(4 * blocks, '\0')};
      if (p.name == model.layout().parameter(3).name) {
        const float bad = fault == std::string("negative") ? -1.0f : std::numeric_limits<float>::infinity();
        if (fault == std::string("missing")) continue;
        if (fault == std::string("dtype")) scales.dtype = "I32";
        if (fault == std::string("shape")) scales.shape = {1, static_cast<std::int64_t>(blocks)};
        if (fault == std::string("negative") || fault == std::string("infinite"))
          std::memcpy(scales.bytes.data(), &bad, sizeof bad);
      }
      tensors.push_back(std::move(scales));
    }
    write_safetensors(file, tensors);
    expect_in(refusal([&] { model.load_checkpoint(path); }),
              {file.string(), model.layout().parameter(3).name + ".moment_scales"});
  }
}

TEST_P(Checkpoints, SaveBesideAStepHoldsTheStateBeforeIt) {
  for (const Owner owner : {Owner::host, Owner::device}) {
    EngineOfModel model(model_directory("qwen3-tied"), GetParam(), 1024, owner);
    model.fill(2);
    const auto before = model.bits();
    CheckpointWriter writer(model.engine(), model.files(), CheckpointDirectory(temporary_.path()), 0);
    writer.start(state_at(7));
    model.step(0.5f, 1);
    writer.wait();
    EXPECT_FALSE(model.bits() == before);
    EngineOfModel other(model_directory("qwen3-tied"), GetParam());
    other.load_checkpoint(temporary_ / "checkpoint-7");
    EXPECT_TRUE(other.bits() == before) << name_of(owner);
  }
}

// Links of others, under names that checkpoints have.
TEST_P(Checkpoints, LinksAreNeitherReplacedNorRenamed) {
  EngineOfModel model(model_directory("llama-bias"), GetParam());
  model.fill(1);
  const auto first = write(model);
  std::filesystem::rename(first, temporary_ / "elsewhere");
  std::filesystem::create_directory_symlink("elsewhere", first);
  const auto before = snapshot(temporary_ / "elsewhere");
  CheckpointWriter writer(model.engine(), model.files(), CheckpointDirectory(temporary_.path()), 0);
  writer.start(state_at(7));
  EXPECT_NE(refusal([&] { writer.wait(); }).find("checkpoint-7 is a link, which is neither"), std::string::npos);
  EXPECT_NE(refusal([&] { writer.goes_on_from(5); }).find("checkpoint-7 is a link where"), std::string::npos);
  writer.goes_on_from(7);
  writer.start(state_at(8));
  writer.wait();
  EXPECT_TRUE(std::filesystem::is_symlink(first));
  EXPECT_TRUE(snapshot(temporary_ / "elsewhere") == before);
}

TEST_P(Checkpoints, MissingOrCutFilesAreNamed) {
  EngineOfModel model(model_directory("llama-bias"), GetParam());
  model.fill(3);
  const auto path = write(model);
  std::vector<std::string> files = {"model.safetensors", "exp_avg.safetensors", "exp_avg_sq.safetensors",
                                    "config.json"};
  if (GetParam() == DType::bf16) files.push_back("master.safetensors");
  for (const std::string& file : files) {
    const std::string bytes = read_file(path / file);
    const auto load = [&] { model.load_checkpoint(path); };
    std::filesystem::remove(path / file);
    expect_in(refusal(load), {path.string(), file});
    write_file(path / file, bytes.substr(0, bytes.size() / 2));
    expect_in(refusal(load), {(path / file).string()});
    write_file(path / file, bytes);
    EXPECT_NO_THROW(load());
  }
}

TEST_P(Checkpoints, OtherModelsAreRefused) {
  EngineOfModel model(model_directory("llama-untied"), GetParam());
  model.fill(4);
  const auto path = write(model);
  EngineOfModel other(model_directory("qwen3-tied"), GetParam());
  expect_in(refusal([&] { other.load_checkpoint(path); }), {path.string(), "another model"});
}

TEST_P(Checkpoints, MomentsOfAnotherShapeOrTypeAreRefused) {
  EngineOfModel model(model_directory("llama-bias"), GetParam());
  model.fill(5);
  const auto path = write(model);
  const auto file = path / "exp_avg_sq.safetensors";
  for (const char* fault : {"dtype", "shape", "extra", "missing"}) {
    SCOPED_TRACE(fault);
    std::vector<RawTensor> tensors;
    for (const Parameter& p : model.layout().parameters())
      tensors.push_back({p.name, "F32", p.shape, std::string(static_cast<std::size_t>(p.size()) * 4, '\0')});
    std::string named = tensors[3].name;
    if (fault == std::string("dtype")) tensors[3].dtype = "I32";
    if (fault == std::string("shape")) tensors[3].shape = {model.layout().parameter(3).size(), 1};
    if (fault == std::string("extra")) tensors.push_back({"more", "F32", {1}, std::string(4, '\0')}), named = "tensors";
    if (fault == std::string("missing")) tensors.erase(tensors.begin() + 3);
    write_safetensors(file, tensors);
    expect_in(refusal([&] { model.load_checkpoint(path); }), {file.string(), named});
  }
}

TEST_P(Checkpoints, AFailedSaveIsReportedOnceAndBlocksNothing) {
  EngineOfModel model(model_directory("llama-bias"), GetParam());
  model.fill(6);
  write_file(temporary_ / "file", "in the way");
  CheckpointWriter writer(model.engine(), model.files(), CheckpointDirectory(temporary_ / "file" / "out"), 0);
  writer.start(state_at(7));
  EXPECT_TRUE(model.step(0.5f, 1).finite) << "a failed save must let updates through";
  expect_in(refusal([&] { writer.wait(); }), {(temporary_ / "file").string()});
  EXPECT_NO_THROW(writer.wait());
  // And the engine goes while its last weights may still be on their way.
}

TEST_P(Checkpoints, WhatIsNotFiniteIsNamed) {
  EngineOfModel model(model_directory("llama-bias"), GetParam());
  model.fill(3);
  const auto path = write(model);
  const std::string tensor = "model.layers.1.mlp.up_proj.weight";
  for (const std::string file : {"exp_avg.safetensors", "exp_avg_sq.safetensors",
                                 GetParam() == DType::bf16 ? "master.safetensors" : "model.safetensors"}) {
    const std::string before = read_file(path / file);
    fill_tensor(path / file, tensor, -std::numeric_limits<float>::infinity(), 77);
    expect_in(refusal([&] { model.load_checkpoint(path); }), {file, "'" + tensor + "'", "not finite"});
    write_file(path / file, before);
  }
  model.load_checkpoint(path);
}

INSTANTIATE_TEST_SUITE_P(DTypes, Checkpoints, testing::Values(DType::f32, DType::bf16),
                         [](const auto& i) { return std::string(name_of(i.param)); });

// The cases are those of transformers' Trainer._determine_best_metric and EarlyStoppingCallback.check_metric_value.
TEST(EvaluationHistory, CountsAsTransformers) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EvaluationHistory e;
  EXPECT_TRUE(e.count(2, 3.0, 0.5));
  EXPECT_EQ(e.without_gain, 0);
  EXPECT_TRUE(e.count(4, 2.75, 0.5)) << "the best, though by less than the threshold";
  EXPECT_EQ(e.without_gain, 1);
  EXPECT_FALSE(e.count(6, nan, 0.5));
  EXPECT_FALSE(e.count(8, 2.75, 0.5)) << "as good is not better";
  EXPECT_EQ(e.without_gain, 3);
  EXPECT_TRUE(e.count(10, 2.25, 0.5)) << "better by the threshold is not by more than it";
  EXPECT_EQ(e.without_gain, 4);
  EXPECT_TRUE(e.count(12, 1.5, 0.5));
  EXPECT_EQ(e.without_gain, 0);
  EXPECT_EQ(e.best_step, 12);
  EXPECT_EQ(e.last_step, 12);
  EvaluationHistory none;
  EXPECT_FALSE(none.count(2, nan, 0));
  EXPECT_EQ(none.without_gain, 0) << "the first";
  EXPECT_FALSE(none.count(4, nan, 0));
  EXPECT_EQ(none.without_gain, 1);
  EXPECT_EQ(none.best_step, 0);
  EXPECT_TRUE(none.count(6, 5, 0));
  EXPECT_EQ(none.without_gain, 0);
}

TEST(TrainerStateFile, KeepsEvaluationsToTheBit) {
  TrainerState state = state_at(7);
  EXPECT_EQ(parse_trainer_state(to_json(state), "f").evaluations, std::nullopt);
  state.evaluations = EvaluationHistory{0.1 + 0.2, 4, 3, 6, 0xfedcba9876543210u};
  EXPECT_EQ(parse_trainer_state(to_json(state), "f").evaluations, state.evaluations);
  state.evaluations = EvaluationHistory{};
  EXPECT_EQ(parse_trainer_state(to_json(state), "f").evaluations, state.evaluations);
  state.evaluations = EvaluationHistory{2.5, 4, 1, 6, 1};
  const auto good = nlohmann::json::parse(to_json(state));
  const std::vector<std::pair<std::string, nlohmann::json>> faults = {
      {"best_metric", "2.5"},           {"best_global_step", -1},        {"best_global_step", 7},
      {"evaluations_without_gain", -1}, {"evaluations_without_gain", 9}, {"last_evaluated_step", 8},
      {"last_evaluated_step", 3},       {"evaluation_data_key", "x"}};
  for (const auto& [key, value] : faults) {
    auto bad = good;
    bad[key] = value;
    expect_in(refusal([&] { parse_trainer_state(bad.dump(), "state"); }), {"state"});
  }
  for (const char* key : {"best_metric", "last_evaluated_step", "evaluations_without_gain", "evaluation_data_key"}) {
    auto bad = good;
    bad.erase(key);
    expect_in(refusal([&] { parse_trainer_state(bad.dump(), "state"); }), {"state"});
  }
}

TEST(TrainerStateFile, RefusesWhatCannotBe) {
  TemporaryDirectory temporary;
  const auto file = temporary / "trainer_state.json";
  const auto good = nlohmann::json::parse(to_json(state_at(7)));
  const std::vector<std::pair<std::string, nlohmann::json>> faults = {{"global_step", -1},
                                                                      {"global_step", "7"},
                                                                      {"updates", 8},
                                                                      {"updates", -1},
                                                                      {"epoch", -1},
                                                                      {"epoch_position", -1},
                                                                      {"tokens", -1},
                                                                      {"data_key", "12zz"},
                                                                      {"data_key", "-1"},
                                                                      {"data_key", ""},
                                                                      {"data_key", "1fedcba9876543210"},
                                                                      {"data_key", 5},
                                                                      {"skipped_in_a_row", -1},
                                                                      {"skipped_in_a_row", 2},
                                                                      {"skipped_in_a_row", "1"},
                                                                      {"format", 2}};
  for (const auto& [key, value] : faults) {
    auto bad = good;
    bad[key] = value;
    write_file(file, bad.dump());
    expect_in(refusal([&] { read_trainer_state(file); }), {file.string()});
  }
  for (const auto& [key, value] : good.items()) {
    auto bad = good;
    bad.erase(key);
    write_file(file, bad.dump());
    if (key == "skipped_in_a_row") {  // which earlier versions did not write
      EXPECT_EQ(read_trainer_state(file).skipped_in_a_row, 0);
      continue;
    }
    expect_in(refusal([&] { read_trainer_state(file); }), {file.string(), key});
  }
  write_file(file, good.dump());
  EXPECT_EQ(read_trainer_state(file).step, 7);
}

}  // namespace
}  // namespace so::test
