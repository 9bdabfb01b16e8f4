// The disk space that a training run will take.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "model/spec.h"
#include "options/train_options.h"

namespace so {

// Bytes of a model with its small files, as the run writes it at its end, and of a checkpoint: the model again, and
// state_bytes(). `weights` is what exported_bytes() says of the model, `directory` that of the small files; empty for
// none.
struct SavedBytes {
  std::uint64_t model = 0, checkpoint = 0;
};
SavedBytes saved_bytes(std::uint64_t weights, std::int64_t parameters, DType compute,
                       const std::filesystem::path& directory);

struct DiskPlan {
  SavedBytes saved;
  std::int64_t saves = 0;      // checkpoints that this run will write
  std::int64_t existing = 0;   // those that are there already, of a run that is resumed
  std::int64_t keep = 0;       // save_total_limit; 0: all
  std::uint64_t replaced = 0;  // bytes of an earlier run's checkpoints, which are removed before anything is written

  // The most that the run takes at once beyond what is on the disk now. A checkpoint is removed only when a newer one
  // is whole, and the model is written before the last checkpoint.
  std::uint64_t peak() const;
  // "disk: final model 56.8 MB, 3 checkpoints of 170.0 MB (newest 1 kept), 397 MB at once; 81.0 GB free"
  std::string line(std::uint64_t free) const;
  // Throws Error that says how much is missing, if the file system of `directory` (or of the directory it will be in)
  // has less than peak() free.
  void require(const std::filesystem::path& directory) const;
};

// The plan of a run that goes on after `first_step` and ends with `last_step`.
DiskPlan disk_plan(const OutputOptions& options, const SavedBytes& saved, std::int64_t first_step,
                   std::int64_t last_step);

}  // namespace so
