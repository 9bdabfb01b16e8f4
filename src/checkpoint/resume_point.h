// Where a run that is resumed goes on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/output_directory.h"
#include "checkpoint/trainer_state.h"

namespace so {

// A run from the beginning has neither.
struct ResumePoint {
  std::int64_t step() const { return state ? state->step : 0; }
  const TrainerState* state_or_null() const { return state ? &*state : nullptr; }
  std::string state_file() const { return checkpoint ? (checkpoint->path / trainer_state_file).string() : ""; }

  std::optional<Checkpoint> checkpoint;
  std::optional<TrainerState> state;
};

// The checkpoint that `output` goes on from, with the state it records. Throws Error if it is damaged, or that of a run
// with other settings or data. `checks_files`: every byte of it is read and compared with its checksum, which one rank
// does for all.
ResumePoint read_resume_point(const OutputDirectory& output, const TrainOptions& asked, std::uint64_t data_key,
                              std::uint64_t evaluation_key, bool checks_files);

// Whether the run has used up its patience with evaluations that are no better (--early_stopping_patience).
bool stopped_early(const BestModelOptions& options, const TrainerState& state);

// Whether the directory holds the model of a run that has done all its steps, or stopped early, with nothing left to
// write.
bool is_finished(const LoopOptions& options, const ResumePoint& from, std::int64_t total_steps);

}  // namespace so
