// --allow_changed: a resumed run with other settings, from the next step on; and what is said without it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "support/files.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class ChangedSettings : public testing::Test {
 protected:
  // Six steps of four rows, saved after three.
  TrainCommand command(const std::string& output) const {
    TrainCommand c(model_fixture("qwen3-tied") / "model", data_, temporary_ / output);
    c.set("lr", "2e-3").set("lr_scheduler", "constant").set("warmup", "0").set("batch_size", "4");
    c.set("max_length", "48").set("dtype", "fp32").set("max_steps", "6").set("save_steps", "3");
    return c.set("cache_dir", (temporary_ / "cache").string());
  }
  TrainCommand resumed(const std::string& output, int step = 3) const {
    return command(output).set("resume", (temporary_ / output / ("checkpoint-" + std::to_string(step))).string());
  }
  Outcome finish(const TrainCommand& c) const {
    Outcome o = run(c.words(), temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    return o;
  }
  void refuse(const TrainCommand& c, const std::vector<std::string>& parts) const {
    expect_refusal(run(c.words(), temporary_.path()), parts);
  }
  std::vector<double> of_steps(const std::string& output, const char* key) const {
    std::vector<double> all;
    for (const json& line : read_metrics(temporary_ / output)) all.push_back(line.at(key));
    return all;
  }

  TemporaryDirectory temporary_;
  fs::path data_ = model_fixture("qwen3-tied") / "data.jsonl";
};

// The same rows are in each step, in sums that round otherwise; and from then on the new split is the run's own.
TEST_F(ChangedSettings, TheSameRowsInAnotherSplit) {
  finish(command("whole"));
  fs::copy(temporary_ / "whole", temporary_ / "run", fs::copy_options::recursive);
  const auto split = [](TrainCommand c) { return c.set("batch_size", "2").set("gradient_accumulation_steps", "2"); };
  const std::string checkpoint = (temporary_ / "run" / "checkpoint-3").string();
  refuse(split(resumed("run")), {"checkpoint-3/trainer_state.json is of a run whose steps have 1 x 1 x 4 rows",
                                 "now they would have 1 x 2 x 2: the same rows in another split",
                                 "allow that with --allow_changed batch_size"});
  refuse(resumed("run").set("batch_size", "2").set("allow_changed", "batch_size"),
         {"now they would have 1 x 1 x 2, which are other rows; give --batch_size 4 --gradient_accumulation_steps 1",
          "--model " + checkpoint});
  const Outcome o = finish(split(resumed("run")).set("allow_changed", "batch_size").set("save_steps", "2"));
  EXPECT_NE(o.err.find("from step 3 on a micro-batch has 2 rows, not 4"), std::string::npos) << o.err;

  EXPECT_EQ(of_steps("run", "tokens"), of_steps("whole", "tokens"));
  const auto loss = of_steps("run", "loss"), expected = of_steps("whole", "loss");
  ASSERT_EQ(loss.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    const double rounding = i < 3 ? 0 : 1e-4;  // fp32 sums in another order
    EXPECT_NEAR(loss[i], expected[i], rounding * expected[i]) << "step " << i + 1;
  }
  const std::string model = read_file(temporary_ / "run" / "model.safetensors");
  finish(split(resumed("run", 4)).set("save_steps", "2"));
  EXPECT_TRUE(read_file(temporary_ / "run" / "model.safetensors") == model) << "without --allow_changed, to the bit";
}

TEST_F(ChangedSettings, AnotherRateFromTheNextStepOn) {
  finish(command("run"));
  const std::string checkpoint = (temporary_ / "run" / "checkpoint-3").string();
  const auto other = [](TrainCommand c) { return c.set("lr", "1e-3").set("weight_decay", "0.5"); };
  refuse(other(resumed("run")),
         {"lr: 0.002 recorded, 0.001 now; weight_decay: 0.01 recorded, 0.5 now; give the recorded values, allow others "
          "from here on with --allow_changed lr,weight_decay, or begin anew from its weights with --model " +
          checkpoint + " and another --output_dir"});
  refuse(other(resumed("run")).set("allow_changed", "lr"), {"settings: weight_decay: 0.01 recorded, 0.5 now"});
  const Outcome o = finish(other(resumed("run")).set("allow_changed", "lr,weight_decay"));
  EXPECT_NE(o.err.find("from step 3 on other settings, as --allow_changed has it: lr: 0.002 recorded, 0.001 now"),
            std::string::npos)
      << o.err;
  EXPECT_EQ(of_steps("run", "lr"), (std::vector<double>{2e-3, 2e-3, 2e-3, 1e-3, 1e-3, 1e-3}));
  finish(other(resumed("run", 6)).set("max_steps", "7"));  // what is recorded now needs no allowing
  EXPECT_EQ(of_steps("run", "lr").back(), 1e-3);
}

TEST_F(ChangedSettings, AnotherScheduleAndAShorterRun) {
  finish(command("run").set("lr_scheduler", "linear").set("warmup_num_steps", "1"));
  const auto shorter = [](TrainCommand c) {
    return c.set("lr_scheduler", "linear").set("warmup_num_steps", "1").set("max_steps", "5");
  };
  refuse(shorter(resumed("run")), {"of a run of 6 steps, and 5 are asked for", "--allow_changed max_steps"});
  refuse(shorter(resumed("run", 6)).set("allow_changed", "max_steps"),
         {"is of step 6, and a run of 5 steps has none to go on with; resume from an earlier checkpoint"});
  const Outcome o = finish(shorter(resumed("run")).set("allow_changed", "max_steps"));
  EXPECT_NE(o.err.find("the run is shortened from 6 to 5 steps: from here on the learning rate is that of a linear "
                       "schedule over 5 steps; warm-up is 1 steps"),
            std::string::npos)
      << o.err;
  const auto rate = of_steps("run", "lr");
  ASSERT_EQ(rate.size(), 5u);
  EXPECT_DOUBLE_EQ(rate[3], 2e-3 * 2 / 4);
  EXPECT_DOUBLE_EQ(rate[4], 2e-3 * 1 / 4);

  const auto rising = [](TrainCommand c) {
    return c.set("max_steps", "5")
        .set("warmup_num_steps", "5")
        .set("allow_changed", "lr_scheduler,warmup_num_steps,max_steps");
  };
  finish(rising(resumed("run")));
  EXPECT_DOUBLE_EQ(of_steps("run", "lr").at(3), 2e-3 * 3 / 5);
}

TEST_F(ChangedSettings, WhatHasNoMeaningIsRefused) {
  finish(command("run"));
  refuse(resumed("run").set("seed", "7"), {"seed: 1 recorded, 7 now; give the recorded values, or begin anew"});
  refuse(resumed("run").set("seed", "7").set("allow_changed", "seed"),
         {"--allow_changed seed: a run cannot go on with another", "--model CHECKPOINT"});
  refuse(resumed("run").set("allow_changed", "learning_rate"),
         {"--allow_changed learning_rate: there is no such option"});
  refuse(resumed("run").set("allow_changed", "save_steps"), {"--allow_changed save_steps: it may always change"});
}

}  // namespace
}  // namespace so::test
