#include "train/training_progress.h"

#include <gtest/gtest.h>

#include "base/progress.h"
#include "base/terminal.h"

namespace so {
namespace {

StepMetrics some_step() {
  StepMetrics m;
  m.step = 12345;
  m.epoch = 1.5;
  m.loss = 2.34567;
  m.lr = 1.25e-5;
  m.grad_norm = 0.98765;
  m.tokens_per_s = 123456;
  m.model_tflops = 345.6;
  m.host_memory_bytes = 123'400'000'000;
  return m;
}

TEST(TrainingProgress, HasTheFieldsThatFit) {
  const auto text = [&](std::size_t columns) { return training_progress_text(some_step(), 100000, 4000, columns); };
  EXPECT_EQ(text(0),
            "step 12345/100000 | epoch 1.50 | loss 2.3457 | lr 1.25e-05 | grad norm 0.988 | 123456 tok/s | "
            "346 TFLOP/s | memory 123.4 GB | ETA 1h06m");
  EXPECT_EQ(text(1), "step 12345/100000");
  EXPECT_EQ(text(40), "step 12345/100000 | loss 2.3457");
  EXPECT_EQ(text(79), "step 12345/100000 | loss 2.3457 | lr 1.25e-05 | 123456 tok/s | ETA 1h06m");
  for (std::size_t columns = 20; columns <= 200; ++columns) {
    EXPECT_LE(columns_of(text(columns)), columns);
    EXPECT_GE(text(columns + 1).size(), text(columns).size());
  }
  StepMetrics skipped = some_step();
  skipped.skipped = true;
  EXPECT_NE(training_progress_text(skipped, 100000, 4000, 60).find("SKIPPED"), std::string::npos);
}

TEST(TaskProgress, KeepsTheEndOfALongTitle) {
  const std::string title = "tokenising /data/of/a/project/with/long/names/\u6a21\u578b.jsonl";
  const auto text = [&](std::size_t columns) { return progress_text(title, 0.25, "10 records", 3, columns); };
  EXPECT_EQ(text(0), title + ": 25%, 10 records, 9 s left");
  EXPECT_EQ(text(44), "...mes/\u6a21\u578b.jsonl: 25%, 10 records, 9 s left");
  EXPECT_EQ(text(30), "...s/\u6a21\u578b.jsonl: 25%, 9 s left");
  for (std::size_t columns = 25; columns <= 200; ++columns) EXPECT_LE(columns_of(text(columns)), columns);
}

}  // namespace
}  // namespace so
