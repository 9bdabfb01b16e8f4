// The trainer's samples: when they are due, and where they are recorded.
#include <algorithm>
#include <array>
#include <chrono>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/output_directory.h"
#include "data/token_cache.h"
#include "train/trainer.h"

namespace so {
namespace {

constexpr std::size_t logged_samples = 3, logged_bytes = 120;

void log_samples(const std::vector<Sample>& samples) {
  for (std::size_t i = 0; i < std::min(samples.size(), logged_samples); ++i) {
    const Sample& s = samples[i];
    if (s.finish_reason == "not finite")
      log_warning("step {}: sample {}: the model's logits are not finite", s.step, s.sample);
    else
      log_info("step {}: sample {} of {}: \"{}\"", s.step, s.sample, samples.size(), printable(s.text, logged_bytes));
  }
}

}  // namespace

void Trainer::record_samples() {
  if (!samples_) return;
  sampled_step_ = state_.step;
  time_limit_.begin_other_work();
  // All ranks together; then the first is alone with its weights, which are whole.
  if (in_.ranks.size() > 1) engine_.require_updates(*stream_);
  if (!keeps_records()) return;
  const auto begin = std::chrono::steady_clock::now();
  const auto samples = samples_->generate(state_.step, [&] { return interrupt_->requested(); });
  if (!samples) {
    interrupt_->announce();
    log_info("step {}: the samples were given up{}", state_.step, ended() ? "" : "; a resumed run begins with them");
    return;
  }
  SampleTotals totals;
  totals.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  totals.samples = std::ssize(*samples);
  for (const Sample& sample : *samples) totals.tokens += sample.tokens;
  // A run that was killed may have written some of those of the step that this one was resumed from.
  if (state_.step == first_step_) samples_log_->truncate_after(state_.step - 1);
  samples_log_->add(*samples);
  metrics_->samples(state_.step, totals);
  log_samples(*samples);
}

bool Trainer::samples_are_due(bool ends_epoch) const {
  const LoopOptions& o = in_.options;
  if (o.sample_steps) return state_.step % *o.sample_steps == 0;
  return in_.evaluation_data ? is_due(o.eval_strategy, o.eval_steps, state_.step, ends_epoch)
                             : is_due(o.save_strategy, o.save_steps, state_.step, ends_epoch);
}

bool Trainer::samples_are_missing() {
  if (!samples_) return false;
  const std::filesystem::path output = in_.output.path();
  const bool missing = keeps_records() && (ended() || samples_are_due(state_.begins_epoch())) &&
                       has_metrics_line(output, state_.step, "loss") &&
                       !has_metrics_line(output, state_.step, "samples");
  std::array<double, 1> due{missing ? 1.0 : 0.0};
  in_.ranks.all_reduce_sum(due);
  return due[0] != 0;
}

}  // namespace so
