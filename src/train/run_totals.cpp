#include "train/run_totals.h"

#include <fmt/format.h>

#include <cmath>

#include "base/quantities.h"

namespace so {

void RunTotalsMeter::start() { start_ = std::chrono::steady_clock::now(); }

void RunTotalsMeter::step(const StepMetrics& m, bool clipped) {
  if (totals_.steps == 0) {
    totals_.first_step = m.step;
    totals_.first_loss = m.loss;
  }
  ++totals_.steps;
  totals_.last_step = m.step;
  totals_.last_loss = m.loss;
  totals_.tokens += m.tokens;
  totals_.clipped_steps += clipped ? 1 : 0;
  totals_.skipped_steps += m.skipped ? 1 : 0;
}

void RunTotalsMeter::evaluation(std::int64_t step, double loss) {
  totals_.last_evaluation = {step, loss};
  const bool better =
      !totals_.best_evaluation || loss < totals_.best_evaluation->loss || !std::isfinite(totals_.best_evaluation->loss);
  if (better && std::isfinite(loss)) totals_.best_evaluation = totals_.last_evaluation;
}

RunTotals RunTotalsMeter::totals() const {
  RunTotals now = totals_;
  now.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  return now;
}

std::vector<std::string> describe(const RunTotals& t) {
  if (t.steps == 0) return {};
  std::vector<std::string> lines;
  const std::string steps =
      t.steps == 1 ? fmt::format("step {}", t.last_step) : fmt::format("steps {} to {}", t.first_step, t.last_step);
  lines.push_back(fmt::format("trained: {}, {} tokens in {}{}", steps, t.tokens,
                              t.seconds < 10 ? fmt::format("{:.1f}s", t.seconds) : format_duration(t.seconds),
                              t.measured_steps > 0 ? fmt::format("; steps at {:.0f} tok/s", t.tokens_per_s) : ""));
  lines.push_back(
      fmt::format("loss: {:.4f} at step {}, {:.4f} at step {}", t.first_loss, t.first_step, t.last_loss, t.last_step));
  if (t.best_evaluation && t.last_evaluation)
    lines.push_back(fmt::format("evaluation loss: best {:.4f} at step {}, last {:.4f} at step {}",
                                t.best_evaluation->loss, t.best_evaluation->step, t.last_evaluation->loss,
                                t.last_evaluation->step));
  return lines;
}

std::string gradients_line(const RunTotals& t) {
  return fmt::format("gradients: {} of {} steps clipped, {} skipped as not finite", t.clipped_steps, t.steps,
                     t.skipped_steps);
}

}  // namespace so
