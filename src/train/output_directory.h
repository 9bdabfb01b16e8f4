// The output directory of a run: what it may hold before, and which checkpoint to go on from.
#pragma once

#include <cstdint>
#include <optional>

#include "base/options.h"
#include "io/checkpoint_directory.h"
#include "train/train_options.h"
#include "train/trainer_state.h"

namespace so {

class OutputDirectory {
 public:
  // Throws Error if the directory already holds a run and neither --resume nor --overwrite_output_dir was given, or if
  // the checkpoint to resume from is not there, or if the run would remove the model or data it reads. Changes nothing.
  OutputDirectory(const TrainOptions& options, const OptionOrigins& origins);

  // What to resume from. None for a fresh run, and for --resume in a directory without a checkpoint yet, which starts
  // from the beginning: so that one command line can be run again until it is done.
  const std::optional<Checkpoint>& checkpoint() const { return checkpoint_; }
  // Throws Error naming what differs, if the checkpoint's run is not this one, its length aside (run_length.h).
  void require_same_run(const TrainerState& state, std::uint64_t data_key) const;

  // Creates the directory, proves that it can be written and has `bytes` free, and removes what an overwritten run or a
  // killed process left. The first call that changes anything.
  void prepare(std::uint64_t bytes);

 private:
  const TrainOptions& options_;
  std::optional<Checkpoint> checkpoint_;
};

}  // namespace so
