// Learning-rate schedules with warmup, as transformers' get_{constant,linear,cosine}_schedule_with_warmup and
// get_wsd_schedule.
#pragma once

#include <cstdint>

namespace so {

// "constant" is transformers' constant_with_warmup; its plain "constant" ignores the warmup it is given. "wsd" is
// warmup, stable, decay: constant, but for a decay at the end of the run.
enum class LrScheduleKind { constant, linear, cosine, wsd };

// The steps that are a share of the run, as those of warmup: ceil(ratio * total_steps), as TrainingArguments computes
// them. Throws Error unless 0 <= ratio <= 1.
std::int64_t share_of_steps(double ratio, std::int64_t total_steps);

struct LrCourse {
  LrScheduleKind kind = LrScheduleKind::linear;
  double peak = 0;
  double least = 0;  // where all but constant end
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;  // of wsd
  std::int64_t total_steps = 0;
};

// A pure function of the step, so resuming needs no state. In double.
class LrSchedule {
 public:
  // Throws Error on a negative or non-finite rate, a least one above the peak, or a negative count.
  explicit LrSchedule(const LrCourse& course);

  // The rate of the optimizer step that follows `steps_done` finished ones. It counts from 0 as torch's LambdaLR does:
  // with warmup, the very first step has rate 0.
  //   warmup    peak * done / warmup                     while done < warmup, then, with `begin` = warmup
  //   constant  peak
  //   linear    least + (peak - least) * (total - done) / (total - begin)
  //   cosine    least + (peak - least) * (1 + cos(pi * (done - begin) / (total - begin))) / 2
  //   wsd       peak until begin = max(warmup, total - decay), and from there on as cosine
  // Past the end all but constant stay at `least` (transformers' cosine would rise again).
  double rate(std::int64_t steps_done) const;

 private:
  LrCourse course_;
};

}  // namespace so
