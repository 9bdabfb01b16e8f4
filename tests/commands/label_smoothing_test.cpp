// --label_smoothing_factor reaches the loss, in training and in evaluations.
#include <gtest/gtest.h>

#include "support/files.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/training_run.h"

namespace so::test {
namespace {

class LabelSmoothing : public testing::Test {
 protected:
  TrainCommand command(const std::string& factor) const {
    TrainCommand c(model_fixture("qwen3-tied") / "model", data_, temporary_ / factor);
    c.set("lr", "1e-3").set("batch_size", "8").set("max_length", "32").set("max_steps", "2").set("warmup", "0");
    c.set("eval_data", data_.string()).set("cache_dir", (temporary_ / "cache").string());
    return c.set("label_smoothing_factor", factor);
  }
  // The evaluation before the first step, the first step's loss, the second's.
  std::vector<double> losses(const std::string& factor) const {
    const Outcome o = run(command(factor).words(), temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    std::vector<double> all;
    for (const auto& line : read_metrics(temporary_ / factor))
      all.push_back(line.contains("loss") ? line.at("loss") : line.at("eval_loss"));
    return all;
  }

  TemporaryDirectory temporary_;
  std::filesystem::path data_ = model_fixture("qwen3-tied") / "data.jsonl";
};

// The loss is (1 - factor) * that of the target + factor * the mean over the vocabulary, which is all of it at 1.
TEST_F(LabelSmoothing, MixesTheTargetWithTheVocabulary) {
  const auto none = losses("0"), all = losses("1"), some = losses("0.25");
  ASSERT_EQ(none.size(), 4u);
  for (const std::size_t i : {0u, 1u}) {  // at the same weights
    EXPECT_GT(std::abs(all[i] - none[i]), 1e-3);
    EXPECT_NEAR(some[i], 0.75 * none[i] + 0.25 * all[i], 1e-5) << i;
  }
  EXPECT_NE(some[2], 0.75 * none[2] + 0.25 * all[2]) << "the gradients differ";
  expect_refusal(run(command("0.25").set("label_smoothing_factor", "0.5").flag("resume").words(), temporary_.path()),
                 {"label_smoothing_factor: 0.25 recorded, 0.5 now"});
}

}  // namespace
}  // namespace so::test
