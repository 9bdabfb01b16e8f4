// train --freeze: which bytes change, what checkpoints hold, and that runs go on from them exactly.
#include <fnmatch.h>
#include <gtest/gtest.h>

#include <sstream>

#include "support/files.h"
#include "support/label.h"
#include "support/mpirun.h"
#include "support/on_gpu.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

constexpr const char* low = "model.embed_tokens.*,model.layers.0.*";

class Freeze : public testing::Test {
 protected:
  TrainCommand command(const std::string& model, const std::string& output, const std::string& patterns) const {
    TrainCommand c(model_fixture(model) / "model", model_fixture(model) / "data.jsonl", temporary_ / output);
    c.set("lr", "1e-3").set("batch_size", "8").set("max_length", "32").set("max_steps", "4").set("warmup", "0");
    c.set("cache_dir", (temporary_ / "cache").string()).set("save_steps", "2");
    return c.set("freeze", patterns);
  }
  Outcome finish(const TrainCommand& c) const {
    Outcome o = run(c.words(), temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return o;
  }
  StoredTensors weights(const fs::path& directory) const { return read_model_weights(directory); }

  TemporaryDirectory temporary_;
};

// Every trained tensor has changed, and every frozen one has the bytes that it was read with.
TEST_F(Freeze, WhatIsFrozenIsWrittenAsItWasRead) {
  struct Case {
    const char *model, *dtype, *patterns;
  };
  const std::vector<Case> cases = {
      {"qwen3-tied", "fp32", low},
      {"qwen3-bf16-v4", "auto", "*.mlp.*,*norm.weight"},
      {"llama-untied", "fp32", "lm_head.weight"},
      {"qwen3-moe", "fp32", "*.mlp.gate.weight,model.layers.1.*"},
      {"qwen3-5-moe", "fp32", "*.shared_expert_gate.weight,*.shared_expert.down_proj.weight"},
      {"gpt-oss", "fp32", "*.mlp.*"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.model);
    finish(command(c.model, c.model, c.patterns).set("dtype", c.dtype));
    const StoredTensors before = weights(model_fixture(c.model) / "model"), after = weights(temporary_ / c.model);
    ASSERT_EQ(before.size(), after.size());
    int frozen = 0;
    for (const auto& [name, tensor] : before) {
      bool is_frozen = false;
      for (const std::string& pattern : split(c.patterns))
        is_frozen = is_frozen || ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
      frozen += is_frozen ? 1 : 0;
      EXPECT_EQ(after.at(name).values == tensor.values, is_frozen) << name;
    }
    EXPECT_GT(frozen, 0);
    // Checkpoints hold state of the others alone.
    const StoredTensors moments = test::read_safetensors(temporary_ / c.model / "checkpoint-4" / "exp_avg.safetensors");
    EXPECT_EQ(static_cast<int>(moments.size()), static_cast<int>(before.size()) - frozen);
    EXPECT_EQ(weights(temporary_ / c.model / "checkpoint-4").size(), before.size());
  }
  const Outcome verified = run({test::binary(), "verify", (temporary_ / "gpt-oss").string()}, temporary_.path());
  EXPECT_EQ(verified.exit_code, 0) << verified.out;
}

// A run that was stopped after its second step ends with the same bytes, whoever has the state then.
TEST_F(Freeze, ResumesToTheSameBytes) {
  finish(command("qwen3-bf16-v4", "whole", low).set("dtype", "bf16"));
  fs::copy(temporary_ / "whole", temporary_ / "resumed", fs::copy_options::recursive);
  fs::remove_all(temporary_ / "resumed" / "checkpoint-4");
  finish(command("qwen3-bf16-v4", "resumed", low).set("dtype", "bf16").set("offload_ratio", "0.5").flag("resume"));
  for (const char* file : {"model.safetensors", "checkpoint-4/exp_avg.safetensors", "checkpoint-4/master.safetensors"})
    EXPECT_EQ(read_file(temporary_ / "resumed" / file), read_file(temporary_ / "whole" / file)) << file;
}

TEST_F(Freeze, IsRecordedAndCheckedBeforeAnythingIsWritten) {
  finish(command("qwen3-tied", "run", low));
  const std::string metrics = read_file(temporary_ / "run" / "metrics.jsonl");
  expect_refusal(run(command("qwen3-tied", "run", "*norm.weight").flag("resume").words(), temporary_.path()),
                 {"freeze: ", "recorded"});
  expect_refusal(run(command("qwen3-tied", "run", low).without("freeze").flag("resume").words(), temporary_.path()),
                 {"freeze: ", "recorded"});
  EXPECT_EQ(read_file(temporary_ / "run" / "metrics.jsonl"), metrics);
  expect_refusal(run(command("qwen3-tied", "new", "model.layer.0.*").words(), temporary_.path()),
                 {"--freeze model.layer.0.*", "no parameter of the model has such a name"});
  expect_refusal(run(command("qwen3-tied", "new", "*").words(), temporary_.path()), {"--freeze *", "nothing trained"});
  expect_refusal(run(command("qwen3-tied", "new", "a,,b").words(), temporary_.path()), {"a pattern is empty"});
  EXPECT_FALSE(fs::exists(temporary_ / "new"));
}

SO_LABEL(no_asan, "Freeze.PlansKnow");
TEST_F(Freeze, PlansKnow) {
  const auto planned = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{test::binary(), "plan", "--model", "qwen3-0.6b", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome o = run(words, temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return nlohmann::json::parse(o.out);
  };
  const auto all = planned({}), some = planned({"--freeze", "model.embed_tokens.*,model.layers.[0-9].*"});
  EXPECT_EQ(all.at("trained_parameters"), all.at("parameters"));
  EXPECT_LT(some.at("trained_parameters"), all.at("trained_parameters"));
  EXPECT_LT(some.at("disk").at("checkpoint_bytes"), all.at("disk").at("checkpoint_bytes"));
  EXPECT_EQ(some.at("disk").at("model_bytes"), all.at("disk").at("model_bytes"));
  EXPECT_LT(some.at("expected").at("step_seconds"), 0.9 * all.at("expected").at("step_seconds").get<double>());
  const auto state = [](const nlohmann::json& plan) {
    double bytes = 0;
    for (const auto& entry : plan.at("memory"))
      if (entry.at("name") == "first moments") bytes += entry.at("bytes").get<double>();
    return bytes;
  };
  EXPECT_NEAR(state(some) / state(all),
              some.at("trained_parameters").get<double>() / all.at("trained_parameters").get<double>(), 1e-3);
}

// Ranks load, keep and write their slices of what is frozen, and all of it is the file's.
TEST_F(Freeze, OnSeveralRanks) {
  if (on_gpu()) GTEST_SKIP() << "ranks are those of the CPU device";
  if (const std::string reason = why_no_ranks(); !reason.empty()) GTEST_SKIP() << reason;
  for (const char* gathered : {"0", "2"}) {
    const std::string name = std::string("ranks") + gathered;
    finish(command("qwen3-tied", name, low).set("gpus", "2").set("batch_size", "4").set("gathered_layers", gathered));
    finish(command("qwen3-tied", "one", low).flag("overwrite_output_dir"));
    const StoredTensors before = weights(model_fixture("qwen3-tied") / "model"), one = weights(temporary_ / "one"),
                        two = weights(temporary_ / name);
    for (const auto& [tensor, values] : before) {
      const bool frozen = one.at(tensor).values == values.values;
      EXPECT_EQ(two.at(tensor).values == values.values, frozen) << tensor;
    }
    fs::remove_all(temporary_ / name / "checkpoint-4");
    const std::string expected = read_file(temporary_ / name / "model.safetensors");
    finish(command("qwen3-tied", name, low)
               .set("gpus", "2")
               .set("batch_size", "4")
               .set("gathered_layers", gathered)
               .flag("resume"));
    EXPECT_EQ(read_file(temporary_ / name / "model.safetensors"), expected) << "resumed";
  }
}

}  // namespace
}  // namespace so::test
