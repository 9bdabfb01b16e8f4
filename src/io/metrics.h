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

#include "base/file.h"
#include "io/record_file.h"

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
  std::optional<OverlapRecord> overlap;  // seconds of one step, the mean of all but the first
  double tokens_per_s() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

// A figure of a run as it was planned, and as it came.
struct PlannedFigure {
  std::string name;  // as plan/plan_comparison.h has them
  double planned = 0, measured = 0;
  double difference() const { return measured / planned - 1; }  // as a share of what was planned; not finite for 0
};

// "<output directory>/metrics.jsonl", for one thread. Every append is one write() of one line, so a reader, also after
// kill -9, sees whole lines and at most one cut short at the end. Numbers carry the digits that give the same double
// back; what is not finite is null. Step lines have the keys step, epoch, loss, grad_norm, lr, tokens, step_time_s,
// tokens_per_s, model_tflops, reference_tflops, host_memory_bytes, device_memory_bytes, overlap_efficiency,
// device_seconds and host_seconds (OverlapRecord) and, if the step was skipped, skipped, skipped_tensor and
// skipped_origin; evaluation lines have step and eval_loss; the last line of a run has
// step, the last one, summary: by figure what was planned, what was measured, and the difference as a share; and run:
// RunTotals.
class MetricsLog {
 public:
  // Opens it for appending; created if absent. A last line that was cut short is dropped.
  explicit MetricsLog(const std::filesystem::path& output_directory);

  const std::filesystem::path& path() const { return path_; }
  void step(const StepMetrics& metrics);
  void evaluation(std::int64_t step, double loss);  // of the weights after `step`
  void summary(std::int64_t step, std::span<const PlannedFigure> figures, const RunTotals& totals = {});

  // Whether a line could not be written; it was reported then.
  bool lost_any() const { return writer_.lost_any(); }

  // Drops the lines of steps after `step`, which a resumed run will write again. The other lines keep their bytes. The
  // file is replaced in one piece; a line in the middle that is not a metrics line is an Error that names it.
  void truncate_after(std::int64_t step);

 private:
  void append_line(std::string_view line);
  std::filesystem::path path_;
  File file_;
  RecordWriter writer_;
};

// Whether the record of a run, if there is one, has a line of this step with this key.
bool has_metrics_line(const std::filesystem::path& output_directory, std::int64_t step, std::string_view key);

}  // namespace so
