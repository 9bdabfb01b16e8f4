// How a DeepSpeed file meets the command line, and how its values meet each other.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "options/deepspeed_text.h"

namespace so {
namespace {

using json = nlohmann::json;

// DeepSpeed's rule, written out anew: of the three, what is missing follows from the others; the three must agree.
struct Triple {
  std::optional<int> total, batch, accumulation;
};
std::optional<Triple> deepspeed_rule(Triple t, int ranks) {
  if (t.total && t.batch && !t.accumulation)
    t.accumulation = *t.total / *t.batch / ranks;
  else if (t.total && !t.batch && t.accumulation)
    t.batch = *t.total / ranks / *t.accumulation;
  else if (t.total && !t.batch && !t.accumulation)
    t.accumulation = 1, t.batch = *t.total / ranks;
  if (!t.total) return t;
  if (*t.batch < 1 || *t.accumulation < 1 || *t.total != *t.batch * *t.accumulation * ranks) return std::nullopt;
  return t;
}

TEST(DeepSpeedConfig, BatchSizesFollowDeepSpeedsRule) {
  const std::vector<std::optional<int>> values = {std::nullopt, 1, 2, 3, 4, 8, 12};
  int accepted = 0, refused = 0;
  for (const int ranks : {1, 2, 3}) {
    for (const auto total : values) {
      for (const auto batch : values) {
        for (const auto accumulation : values) {
          json config = json::object();
          if (total) config["train_batch_size"] = *total;
          if (batch) config["train_micro_batch_size_per_gpu"] = *batch;
          if (accumulation) config["gradient_accumulation_steps"] = *accumulation;
          SCOPED_TRACE(config.dump() + " ranks " + std::to_string(ranks));
          const Applied a = read(config.dump(), ranks);
          const std::optional<Triple> expected = deepspeed_rule({total, batch, accumulation}, ranks);
          EXPECT_EQ(a.error.empty(), expected.has_value()) << a.error;
          if (!expected || !a.error.empty()) {
            ++refused;
            continue;
          }
          ++accepted;
          EXPECT_EQ(a.options.batch_size, expected->batch.value_or(TrainOptions().batch_size));
          EXPECT_EQ(a.options.gradient_accumulation_steps, expected->accumulation.value_or(1));
        }
      }
    }
  }
  EXPECT_GT(accepted, 150);  // both outcomes must have been tried
  EXPECT_GT(refused, 150);
}

// As DeepSpeed's, the ranks that split a sequence count as one.
TEST(DeepSpeedConfig, BatchSizesCountSequenceGroups) {
  const std::string sizes = R"("train_batch_size": 8, "sequence_parallel_size": 2)";
  const Applied a = read("{" + sizes + R"(, "gradient_accumulation_steps": 2})", 4);
  EXPECT_EQ(a.error, "");
  EXPECT_EQ(a.options.batch_size, 2);
  EXPECT_EQ(
      read("{" + sizes + R"(, "gradient_accumulation_steps": 1, "train_micro_batch_size_per_gpu": 2})", 4).error,
      "ds.json: train_batch_size 8 is not batch_size 2 (ds.json) x gradient_accumulation_steps 1 (ds.json) x 2 sequence "
      "groups = 4; make it 4, or \"auto\"");
  EXPECT_EQ(read("{" + sizes + "}", 3).error,
            "--sequence_parallel_size 2 does not divide the 3 ranks (--gpus): give a size that does, or other ranks");
  EXPECT_EQ(read("{" + sizes + "}", 1).error,
            "--sequence_parallel_size 2: there is one rank; start as many, or a multiple (--gpus 2), or leave it out");
}

TEST(DeepSpeedConfig, BatchSizeErrorsStateTheThree) {
  EXPECT_EQ(
      read(R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1})", 2)
          .error,
      "ds.json: train_batch_size 8 is not batch_size 2 (ds.json) x gradient_accumulation_steps 1 (ds.json) x 2 ranks "
      "= 4; make it 4, or \"auto\"");
  EXPECT_EQ(
      read(R"({"train_batch_size": 8, "gradient_accumulation_steps": 1})", 1, {{"batch_size", std::int64_t{4}}}).error,
      "ds.json: train_batch_size 8 is not batch_size 4 (command line) x gradient_accumulation_steps 1 (ds.json) x 1 "
      "rank = 4; make it 4, or \"auto\"");
  EXPECT_EQ(
      read(R"({"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2})", 1).error,
      "ds.json: train_batch_size 7 is not a multiple of batch_size 2 (ds.json) x 1 rank; make it one, or \"auto\"");
  // The command line's batch size takes part in the derivation.
  const Applied a = read(R"({"train_batch_size": 8})", 1, {{"batch_size", std::int64_t{2}}});
  EXPECT_EQ(a.error, "");
  EXPECT_EQ(a.options.gradient_accumulation_steps, 4);
}

TEST(DeepSpeedConfig, CommandLineWinsAndTheConflictIsKept) {
  const Applied a = read(R"({"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "gradient_clipping": 1.0})", 1,
                         {{"lr", 2e-5}, {"max_grad_norm", 1.0}});
  EXPECT_EQ(a.options.lr, 2e-5);
  EXPECT_EQ(a.origins.of("lr").overridden, "ds.json: optimizer.params.lr says 0.001");
  EXPECT_EQ(a.origins.of("max_grad_norm").overridden, "");
}

TEST(DeepSpeedConfig, WarmupOnTheCommandLineBeatsTheFilesSteps) {
  const std::string config = config_with("scheduler.params.warmup_num_steps", 100);
  EXPECT_EQ(resolve_warmup_steps(read(config).options, 1000), 100);
  const Applied a = read(config, 1, {{"warmup", 0.02}});
  EXPECT_EQ(resolve_warmup_steps(a.options, 1000), 20);
  EXPECT_EQ(a.origins.of("warmup").overridden, "ds.json: scheduler.params.warmup_num_steps says 100 steps");
}

TEST(DeepSpeedConfig, TwoKeysOfOneOptionMustAgree) {
  const auto with = [](double max_lr) {
    return read(fmt::format(R"({{"optimizer": {{"type": "AdamW", "params": {{"lr": 1e-4}}}},
        "scheduler": {{"type": "WarmupLR", "params": {{"warmup_max_lr": {}}}}}}})",
                            max_lr))
        .error;
  };
  EXPECT_EQ(with(1e-4), "");
  EXPECT_EQ(with(2e-4),
            "ds.json: optimizer.params.lr and scheduler.params.warmup_max_lr both set lr, to 0.0001 and 0.0002; "
            "make them equal or remove one");
}

TEST(DeepSpeedConfig, TotalStepsAreTheRuns) {
  const std::string config = config_with("scheduler.params.total_num_steps", 500);
  EXPECT_EQ(read(config, 1, {{"max_steps", std::int64_t{500}}}).error, "");
  EXPECT_EQ(
      read(config).error,
      "ds.json: scheduler.params.total_num_steps is 500, but the schedule ends with the run; set it to \"auto\" or "
      "give --max_steps 500");
  EXPECT_EQ(
      read(config, 1, {{"max_steps", std::int64_t{400}}}).error,
      "ds.json: scheduler.params.total_num_steps is 500, but the schedule ends with the run at step 400; set it to "
      "\"auto\" or give --max_steps 500");
}

TEST(DeepSpeedConfig, NotesWhereItsDefaultsAreNotDeepSpeeds) {
  const auto notes = [](const char* text) { return read(text).origins.notes; };
  EXPECT_EQ(notes(R"({"scheduler": {"type": "WarmupDecayLR", "params": {}}})").size(), 1u);
  EXPECT_EQ(notes(R"({"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_type": "linear"}}})").size(), 0u);
  EXPECT_EQ(notes(R"({"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_type": "linear"}}})").size(), 2u);
  EXPECT_EQ(notes(R"({"scheduler": {"type": "WarmupCosineLR"}})").size(), 3u);
}

}  // namespace
}  // namespace so
