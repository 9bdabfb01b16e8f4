// train --lr_multiplier: what is said and recorded, that a resumed run ends with the same bytes, and refusals.
#include <gtest/gtest.h>

#include "support/files.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* some_multipliers = "model.embed_tokens.*=0.1,*.k_proj.*=3,*.up_proj.*=0.3,model.layers.1.*=0.7";

class LrMultipliers : public testing::Test {
 protected:
  TrainCommand command(const std::string& output, const std::string& multipliers) const {
    const fs::path fixture = model_fixture("qwen3-bf16-v4");
    TrainCommand c(fixture / "model", fixture / "data.jsonl", temporary_ / output);
    c.set("lr", "1e-3").set("batch_size", "8").set("max_length", "32").set("max_steps", "4").set("warmup", "0");
    c.set("cache_dir", (temporary_ / "cache").string()).set("save_steps", "2").set("dtype", "bf16");
    return c.set("lr_multiplier", multipliers);
  }
  Outcome finish(const TrainCommand& c) const {
    Outcome o = run(c.words(), temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return o;
  }
  void refused(const char* multipliers, const char* frozen, const std::vector<std::string>& needles) const {
    TrainCommand c = command("new", multipliers);
    if (frozen != nullptr) c.set("freeze", frozen);
    expect_refusal(run(c.words(), temporary_.path()), needles);
    EXPECT_FALSE(fs::exists(temporary_ / "new"));
  }

  TemporaryDirectory temporary_;
};

TEST_F(LrMultipliers, AreSaidRecordedAndResumed) {
  const Outcome whole = finish(command("whole", some_multipliers));
  EXPECT_NE(whole.err.find("learning rates: 0.1 * lr for 1 of "), std::string::npos) << whole.err;
  EXPECT_NE(whole.err.find("; 3 * lr for "), std::string::npos) << whole.err;
  const auto metrics = read_metrics(temporary_ / "whole");
  EXPECT_EQ(metrics.front().at("lr"), 1e-3) << "that of the others";
  const std::string expected = read_file(temporary_ / "whole" / "model.safetensors");
  // A run that was stopped after its second step.
  fs::copy(temporary_ / "whole", temporary_ / "resumed", fs::copy_options::recursive);
  fs::remove_all(temporary_ / "resumed" / "checkpoint-4");
  finish(command("resumed", some_multipliers).set("offload_ratio", "0.5").flag("resume"));
  for (const char* file : {"model.safetensors", "checkpoint-4/exp_avg.safetensors", "checkpoint-4/master.safetensors"})
    EXPECT_EQ(read_file(temporary_ / "resumed" / file), read_file(temporary_ / "whole" / file)) << file;

  const Outcome plain = finish(command("plain", some_multipliers).without("lr_multiplier"));
  EXPECT_EQ(plain.err.find("learning rates"), std::string::npos);
  EXPECT_NE(read_file(temporary_ / "plain" / "model.safetensors"), expected);
  finish(command("ones", "*=1"));
  EXPECT_EQ(read_file(temporary_ / "ones" / "model.safetensors"),
            read_file(temporary_ / "plain" / "model.safetensors"));
  expect_refusal(run(command("whole", "*=2").flag("resume").words(), temporary_.path()),
                 {"lr_multiplier: ", "recorded"});
}

TEST_F(LrMultipliers, AreCheckedBeforeAnythingIsWritten) {
  refused("model.layer.0.*=2", nullptr, {"--lr_multiplier model.layer.0.*", "no parameter of the model"});
  refused("model.norm.weight=0", nullptr, {"--lr_multiplier model.norm.weight=0", "--freeze 'model.norm.weight'"});
  refused("model.norm.weight", nullptr, {"--lr_multiplier model.norm.weight", "PATTERN=FACTOR"});
  refused("model.norm.weight=x", nullptr, {"--lr_multiplier model.norm.weight=x", "a number from"});
  refused("model.norm.weight=2", "*norm.weight", {"--lr_multiplier model.norm.weight", "--freeze leaves none"});
}

}  // namespace
}  // namespace so::test
