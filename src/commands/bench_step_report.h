// The report of `bench step` is made here, for people and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "device/trace_summary.h"
#include "offload/engine.h"
#include "offload/schedule/overlap.h"
#include "plan/machine/measure.h"
#include "plan/plan_comparison.h"
#include "plan/training_plan.h"
#include "train/training_step.h"

namespace so {

struct StepMeasurement {
  EngineCounters counters;      // of the timed steps, and what little is between them
  StepOverlap overlap;          // of the timed steps together
  std::vector<double> seconds;  // of each step, in order
  StepResult last;              // each step does the same work
  double first_loss = 0;
  std::vector<PlannedFigure> figures;
  std::optional<TimeSummary> time;
  std::vector<std::string> remarks;  // of the trace
};

struct StepReport {
  std::string config;
  std::int64_t parameters = 0;
  std::string device;
  DType dtype = DType::f32;
  std::int64_t batch_size = 0, max_length = 0, gradient_accumulation_steps = 0;
  std::string optimizer;  // "none": the state is weights and gradients alone
  std::string mode;
  double host_share = 0;
  std::string trace;  // the file that a trace was written to, or empty
  double gemm_rate = 0;
  const TrainingPlan& plan;
  const StepMeasurement& measured;

  bool plain() const { return optimizer == "none"; }
  double seconds() const { return median(measured.seconds); }
  double tokens_per_second() const { return static_cast<double>(measured.last.plan.tokens) / seconds(); }
  double model_rate() const { return measured.last.model_flops / seconds(); }
  double reference_rate() const { return measured.last.reference_flops / seconds(); }
};

nlohmann::ordered_json to_json(const StepReport& report);
void print(const StepReport& report);

}  // namespace so
