// The disk space that a training run will take.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/number_formats.h"
#include "data/dataset.h"
#include "model/spec.h"
#include "options/train_options.h"

namespace so {

// Bytes of a model with its small files, as the run writes it at its end, and of a checkpoint: the model again, and
// state_file_bytes(). `weights` is what exported_bytes() says of the model, `directory` that of the small files; empty
// for none. `only_model`: a checkpoint is the model alone.
struct SavedBytes {
  std::uint64_t model = 0, checkpoint = 0;
};
SavedBytes saved_bytes(std::uint64_t weights, std::int64_t parameters, const NumberFormats& formats,
                       const std::filesystem::path& directory, bool only_model = false);

struct OutputSpace {
  SavedBytes saved;
  std::int64_t saves = 0;      // checkpoints that this run will write
  std::int64_t existing = 0;   // those that are there already, of a run that is resumed
  std::int64_t keep = 0;       // at once, by save_total_limit; 0: all
  bool keeps_best = false;     // one of them is the best's, and `saves` is the most there can be
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

// A token cache that is about to be made.
struct CacheNeed {
  std::string data;                      // the file it is of
  std::filesystem::path directory;       // that it goes to
  std::uint64_t most = 0;                // bytes, an upper limit
  std::function<std::uint64_t()> count;  // its bytes, found by counting, which may take long
};
// The caches that are not there yet.
std::vector<CacheNeed> cache_needs(std::span<DatasetSource> sources);
// "token caches: at most 397 MB by an estimate, in /home/me/.cache/superoffload; 81.0 GB free"; empty for none.
std::string cache_line(std::span<const CacheNeed> needs);
// Throws Error that says how much is missing, if the file systems that the caches go to have no room for them, and for
// `output_bytes` where `output` goes to the same one. What an upper limit would refuse is counted first.
void require_cache_space(std::span<const CacheNeed> needs, const std::filesystem::path& output = {},
                         std::uint64_t output_bytes = 0);

// The plan of a run that goes on after `first_step` and ends with `last_step`. `epochs_in(steps)` counts the epochs
// in that number of steps; it is asked where something comes by epoch.
OutputSpace output_space(const LoopOptions& options, const SavedBytes& saved, std::int64_t first_step,
                         std::int64_t last_step, const std::function<std::int64_t(std::int64_t)>& epochs_in);

}  // namespace so
