// The report of `bench step` is made here, for people and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "device/trace_summary.h"
#include "offload/engine.h"
#include "plan/machine/measure.h"
#include "plan/plan_comparison.h"
#include "plan/training_plan.h"
#include "train/training_step.h"

namespace so {

struct StepMeasurement {
  EngineCounters counters;      // of the timed steps, and what little is between them
  StepFigures steps;            // of the timed steps
  std::vector<double> seconds;  // of each step, in order
  StepResult last;              // each step does the same work
  double first_loss = 0;
  std::vector<PlannedFigure> figures;
  std::optional<TimeSummary> time;
  std::vector<std::string> remarks;  // of the trace
};

// The steps as one rank measured them.
struct RankSteps {
  double seconds = 0;     // of a step: the median
  double tokens = 0;      // of a step, this rank's
  double waiting = 0;     // seconds of a step that the device waited
  double efficiency = 0;  // of the overlap; 0 without an optimizer
  double host_bytes = 0;  // the most that was resident
  double gemm_rate = 0;   // of large matrix products, while the other ranks computed them too
  std::int64_t host = 0;  // the number of its host
  double tokens_per_second() const { return tokens / seconds; }
};

struct StepReport {
  std::string config;
  std::int64_t parameters = 0, trained_parameters = 0;
  std::string frozen;  // how much of the model is; empty if nothing is
  std::string device;
  DType dtype = DType::f32;
  std::int64_t batch_size = 0, max_length = 0, gradient_accumulation_steps = 0;
  std::string optimizer;  // "none": the state is weights and gradients alone
  std::string mode;
  double host_share = 0;
  double fp8_share = 0;  // of the model's FLOPs, as gemm_rate has them
  std::string trace;     // the file that a trace was written to, or empty
  std::vector<RankSteps> ranks;
  const TrainingPlan& plan;
  const StepMeasurement& measured;

  bool plain() const { return optimizer == "none"; }
  double seconds() const { return median(measured.seconds); }
  double tokens_per_second() const { return static_cast<double>(measured.last.plan.tokens) / seconds(); }
  double model_rate() const { return measured.last.model_flops / seconds(); }
  double reference_rate() const { return measured.last.reference_flops / seconds(); }
  double gemm_rate() const;  // of all ranks
};

nlohmann::ordered_json to_json(const StepReport& report);
void print(const StepReport& report);

}  // namespace so
