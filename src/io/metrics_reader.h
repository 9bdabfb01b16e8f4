// Reads metrics.jsonl, as MetricsLog writes it (io/metrics.h), also while a run is writing it. The file is not trusted:
// any bytes give what could be read of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/metrics.h"

namespace so {

// A step as the report needs it. What the file does not have, or has as null, is NaN.
struct RecordedStep {
  std::int64_t step = 0;
  double loss, grad_norm, clip, lr, tokens, step_time_s, tokens_per_s, host_memory_bytes, device_memory_bytes;
  bool skipped = false;
};

struct RecordedEvaluation {
  std::int64_t step = 0;
  double loss = 0;
};

// A skipped step's names.
struct RecordedSkip {
  std::int64_t step = 0;
  std::string tensor, origin;
};

struct RecordedStart {
  std::int64_t step = 0;
  RunFacts facts;
};

// The last line of a run.
struct RecordedEnd {
  std::int64_t step = 0;
  std::vector<PlannedFigure> figures;
  std::vector<NamedMemory> memory;
  std::string outcome;  // empty: not recorded
  std::optional<OverlapRecord> overlap;
};

struct RecordedRun {
  std::vector<RecordedStep> steps;  // by step, each once
  std::vector<RecordedEvaluation> evaluations;
  std::vector<RecordedSkip> skips;  // the first hundred
  std::vector<RecordedStart> starts;
  std::vector<RecordedEnd> ends;
  bool ended = false;  // an end was recorded, and nothing after it
  // Seconds of a step, the mean of those whose line has them but the first; by kind and name.
  OverlapRecord mean_overlap;
  std::size_t lines = 0;  // that were read
  // Where and why reading ended before the end of the file: "line 57 is no JSON". Empty if all was read. A last line
  // without a line end is one that is being written, and is left out without a word.
  std::string damage;

  bool empty() const { return lines == 0; }
};

// Lines of steps that come again take the place of the earlier ones, and of all that these had after them.
RecordedRun read_metrics_text(std::string_view text);

// Reads the file of a run's output directory. Throws Error, naming the directory, if it or its metrics.jsonl is not
// there.
RecordedRun read_metrics_file(const std::filesystem::path& output_directory);

}  // namespace so
