// The output directory of a run: what it may hold before, which checkpoint to resume from, and when replaced files are
// removed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/output_contents.h"
#include "checkpoint/trainer_state.h"
#include "io/held_directory.h"
#include "io/run_lock.h"
#include "options/train_options.h"

namespace so {

class OutputDirectory {
 public:
  // Throws Error if another run is under way in the directory, if it already holds one and neither --resume nor
  // --overwrite_output_dir was given, if the run would write over what this program did not write, if the checkpoint to
  // resume from is not there, or if the run would remove the model or data it reads. Changes nothing.
  OutputDirectory(const OutputOptions& options, const InputOptions& inputs);

  // The checkpoint to resume from. None for a fresh run, and for --resume in a directory without a checkpoint yet: that
  // run starts from the beginning, so that one command line can be run again until it is done.
  const std::optional<Checkpoint>& checkpoint() const { return checkpoint_; }
  // Throws Error naming what differs, if the checkpoint's run is not the one that is asked for, its length aside
  // (run_length.h). A run that looks for its best evaluation has the same evaluations too.
  void require_same_run(const TrainerState& state, const TrainOptions& asked, std::uint64_t data_key,
                        std::uint64_t evaluation_key = 0) const;
  // Throws Error unless the checkpoint to resume from and that of the best evaluation are this directory's, where the
  // best is kept.
  void require_best(const TrainerState& state) const;

  // Throws Error if the directory could not be made or written, or has no `bytes` free. Changes nothing: what a dry run
  // asks in place of prepare().
  void require_usable(std::uint64_t bytes) const;

  // Creates the directory, takes its lock for the life of this object, proves that it can be written and has `bytes`
  // free, and removes what a killed process left of its own files. Nothing of an earlier run is touched.
  void prepare(std::uint64_t bytes);
  // The directory as it is named, and from prepare() on wherever it has been moved to.
  CheckpointDirectory checkpoints() const;
  std::filesystem::path path() const { return checkpoints().path(); }
  // Removes, by name, the files of the run that is overwritten, and records those that this one begins with. Called
  // when the new run has something to put there: its weights are loaded.
  void begin();
  // Whether a file of this name is there, and this program wrote it.
  bool owns(const std::string& name) const;
  // Records what is about to be written.
  void add(const FileNames& names) const { own_.add(names); }

 private:
  void require_free(const OutputContents& contents) const;
  const OutputOptions& options_;
  const InputOptions& inputs_;
  const OwnFiles own_;
  std::optional<Checkpoint> checkpoint_;
  std::shared_ptr<const HeldDirectory> held_;
  std::optional<RunLock> lock_;
};

}  // namespace so
