// The trainer's records: its metrics and the lines of the log about a step.
#include <limits>

#include "base/host_memory.h"
#include "base/log.h"
#include "base/result_line.h"
#include "device/backend.h"
#include "offload/engine_report.h"
#include "ops/runtime.h"
#include "train/run_report.h"
#include "train/trainer.h"

namespace so {

namespace {

std::string_view name_of(Trainer::Outcome outcome) {
  switch (outcome) {
    case Trainer::Outcome::finished:
      return "finished";
    case Trainer::Outcome::interrupted:
      return "interrupted";
    case Trainer::Outcome::diverged:
      return "diverged";
  }
  return {};
}

}  // namespace

void Trainer::record_summary(Outcome outcome, std::span<const PlannedFigure> figures,
                             std::span<const NamedMemory> memory) {
  if (!keeps_records()) return;
  RunTotals totals = totals_.totals();
  totals.outcome = name_of(outcome);
  const StepFigures measured = step_figures();
  const StepOverlap& overlap = measured.sum.overlap;
  const auto steps = static_cast<double>(measured.steps);
  totals.measured_steps = measured.steps;
  totals.tokens_per_s = measured.tokens_per_s();
  if (measured.steps > 0) totals.overlap = record_of(overlap, steps);
  metrics_->summary(state_.step, figures, totals, memory);
  tensorboard_->summary(state_.step, figures);
  for (const std::string& line : describe(totals)) log_result(line);
  log_detail("{}", gradients_line(totals));
  if (measured.left_out > 0) log_detail("{}", left_out_line(measured));
  if (measured.steps > 0 && backend_of(in_.runtime.device()).own_processors)
    log_detail("{}", overlap_line(overlap, steps));
}

void Trainer::report(const Step& r) {
  if (!keeps_records()) return;
  StepMetrics m;
  m.step = state_.step;
  const double steps_per_epoch = static_cast<double>(in_.batches.steps_per_epoch(r.plan.epoch));
  m.epoch = static_cast<double>(r.plan.epoch) + static_cast<double>(r.plan.index + 1) / steps_per_epoch;
  m.loss = r.loss;
  m.grad_norm = r.verdict.norm;
  m.clip = r.verdict.finite ? r.verdict.clip : std::numeric_limits<double>::quiet_NaN();
  m.lr = r.lr;
  m.tokens = r.plan.tokens;
  m.step_time_s = r.seconds;
  m.tokens_per_s = static_cast<double>(r.plan.tokens) / r.seconds;
  m.model_tflops = r.model_flops / r.seconds / 1e12;
  m.reference_tflops = r.reference_flops / r.seconds / 1e12;
  m.host_memory_bytes = resident_bytes();
  m.device_memory_bytes = held_own_memory(in_.runtime.device());
  m.overlap = record_of(overlap_of(r.counters));
  m.skipped = !r.verdict.finite;
  m.skipped_tensor = r.skipped_tensor;
  m.skipped_origin = r.skipped_origin;
  metrics_->step(m);
  tensorboard_->step(m);
  totals_.step(m, r.verdict.finite && r.verdict.clip < 1);
  if (m.skipped)
    log_warning(
        "step {}: skipped, weights and optimizer state are as before: what is not finite began in {}; in backward with "
        "the gradient of '{}'",
        m.step, m.skipped_origin, m.skipped_tensor);
  if (in_.options.wall_clock_breakdown && m.step % in_.options.log_interval == 0) log_breakdown(r);
  progress_.step(m);
}

void Trainer::log_breakdown(const StepResult& r) {
  const EngineCounters now = engine_.counters(), step = since(now, reported_);
  const StepOverlap overlap = overlap_of(r.counters);
  log_info("step {}: {:.4f} s; overlap efficiency {:.3f}; {}", state_.step, r.seconds, overlap.efficiency(),
           describe(overlap));
  if (const std::string schedule = describe_schedule(step); !schedule.empty())
    log_info("step {}: {}", state_.step, schedule);
  reported_ = now;
}

}  // namespace so
