// The measurements of each step of a run, and their record: metrics.jsonl, one JSON object a line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/step_lines.h"

namespace so {

using NamedSeconds = std::vector<std::pair<std::string, double>>;

// How well a step hid AdamW on the host and the device's work behind each other, and where the time of either side
// went. Each side's seconds add up to the step.
struct OverlapRecord {
  double efficiency = 0;        // the longer of the two works as a share of the step
  NamedSeconds device_seconds;  // work, and idle by what was waited for
  NamedSeconds host_seconds;    // of the optimizer's thread; empty: no optimizer state was the host's
};

// One optimizer step. Rates are over the step's wall time; memory is the peak so far.
struct StepMetrics {
  std::int64_t step = 0;    // the first step is 1
  double epoch = 0;         // passes over the data, with the fraction of the current one
  double loss = 0;          // mean over the step's target tokens
  double grad_norm = 0;     // before clipping
  double clip = 1;          // what the gradients were multiplied by; below 1 if the step was clipped
  double lr = 0;            // of this step
  std::int64_t tokens = 0;  // without padding, in this step, over all ranks
  double step_time_s = 0;
  double tokens_per_s = 0;
  double model_tflops = 0;      // model FLOPs per second and GPU, without recomputation
  double reference_tflops = 0;  // as the published system counts them
  std::uint64_t host_memory_bytes = 0;
  std::uint64_t device_memory_bytes = 0;
  OverlapRecord overlap = {};
  bool skipped = false;             // a gradient was not finite: no weight changed
  std::string skipped_tensor = {};  // the first one it was found in, in the order of backward
  std::string skipped_origin = {};  // where it began: "the gradients", "the loss", or the first activation that was not
};

// A training run in a few numbers. Losses are of single steps, evaluations of the whole evaluation data.
struct RunTotals {
  struct Evaluation {
    std::int64_t step = 0;
    double loss = 0;
  };
  std::int64_t steps = 0;                      // of this run, not of those it was resumed from
  std::int64_t first_step = 0, last_step = 0;  // 0 without a step
  std::int64_t tokens = 0;
  double seconds = 0;  // from the first step to now, evaluations and checkpoints included
  double first_loss = 0, last_loss = 0;
  std::optional<Evaluation> best_evaluation, last_evaluation;
  std::int64_t clipped_steps = 0, skipped_steps = 0;
  // Means over the steps that the closing figures are of (plan/step_figures.h).
  std::int64_t measured_steps = 0;
  double tokens_per_s = 0;
  std::optional<OverlapRecord> overlap;  // seconds of one step
  std::string outcome;                   // how the run ended: finished, interrupted, diverged
};

// A figure of a run as it was planned, and as it came.
struct PlannedFigure {
  std::string name;  // as plan/plan_comparison.h has them
  double planned = 0, measured = 0;
  double difference() const { return measured / planned - 1; }  // as a share of what was planned; not finite for 0
};

// Memory by its use.
struct NamedMemory {
  std::string kind, name;               // as device/ledger.h has them
  std::uint64_t planned = 0;            // bytes
  std::string phases = {};              // when it is held: "loading", "saving, exporting"; empty: all the time
  std::optional<double> measured = {};  // bytes, the most at once; none: not counted by name
};

// An option of a run, with its unit, and who gave it.
struct RecordedSetting {
  std::string name, value, origin;
  std::string where = {}, overridden = {};  // as base/option_table.h has them; may be empty
};

// All that is known when a run begins, or is resumed.
struct RunFacts {
  std::string program;  // its version
  std::string model, device;
  std::int64_t ranks = 1;
  std::int64_t total_steps = 0;
  double time = 0;  // seconds since 1970
  std::vector<RecordedSetting> settings;
  std::vector<NamedMemory> memory;  // without what was measured
  double step_seconds = 0;          // as planned; 0: no step was simulated, and there is no overlap
  std::optional<OverlapRecord> overlap = {};
};

// The texts that were generated at a step.
struct SampleTotals {
  std::int64_t samples = 0, tokens = 0;
  double seconds = 0;
};

// "<output directory>/metrics.jsonl" (io/step_lines.h). Numbers carry the digits that give the same double back; what
// is not finite is null. There are lines of steps, of evaluations, of samples, of a run's start and of its end; their
// keys are listed in io/metric_fields.h.
class MetricsLog {
 public:
  explicit MetricsLog(const std::filesystem::path& output_directory);

  const std::filesystem::path& path() const { return lines_.path(); }
  void start(std::int64_t step, const RunFacts& facts);  // `step`: optimizer steps done so far
  void step(const StepMetrics& metrics);
  void evaluation(std::int64_t step, double loss);              // of the weights after `step`
  void samples(std::int64_t step, const SampleTotals& totals);  // of the weights after `step`
  void summary(std::int64_t step, std::span<const PlannedFigure> figures, const RunTotals& totals = {},
               std::span<const NamedMemory> memory = {});

  bool lost_any() const { return lines_.lost_any(); }
  // Drops the lines of steps after `step`, which a resumed run will write again.
  void truncate_after(std::int64_t step) { lines_.truncate_after(step); }

 private:
  StepLines lines_;
};

// Whether the record of a run, if there is one, has a line of this step with this key.
bool has_metrics_line(const std::filesystem::path& output_directory, std::int64_t step, std::string_view key);

}  // namespace so
