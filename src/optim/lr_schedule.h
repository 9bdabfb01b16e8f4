// Learning-rate schedules with warmup, as transformers' get_{constant,linear,cosine}_schedule_with_warmup.
#pragma once

#include <cstdint>

namespace so {

// "constant" is transformers' constant_with_warmup; its plain "constant" ignores the warmup it is given.
enum class LrScheduleKind { constant, linear, cosine };

// The warmup steps that are a share of the run: ceil(ratio * total_steps), as TrainingArguments computes them.
// Throws Error unless 0 <= ratio <= 1.
std::int64_t warmup_steps_of(double ratio, std::int64_t total_steps);

// A pure function of the step, so resuming needs no state. In double.
class LrSchedule {
 public:
  // Throws Error on a negative or non-finite rate or a negative count.
  LrSchedule(LrScheduleKind kind, double peak_lr, std::int64_t warmup_steps, std::int64_t total_steps);

  // The rate of the optimizer step that follows `steps_done` finished ones. It counts from 0 as torch's LambdaLR does:
  // with warmup, the very first step has rate 0.
  //   warmup    peak * done / warmup                                              while done < warmup, then
  //   constant  peak
  //   linear    peak * (total - done) / (total - warmup)
  //   cosine    peak * (1 + cos(pi * (done - warmup) / (total - warmup))) / 2
  // Past the end linear and cosine stay at 0 (transformers' cosine would rise again).
  double rate(std::int64_t steps_done) const;

 private:
  LrScheduleKind kind_;
  double peak_lr_;
  std::int64_t warmup_steps_, total_steps_;
};

}  // namespace so
