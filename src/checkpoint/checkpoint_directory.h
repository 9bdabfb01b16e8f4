// The checkpoints of a run: "checkpoint-<step>" directories under its output directory, as transformers names them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "io/held_directory.h"

namespace so {

struct Checkpoint {
  std::int64_t step = 0;
  std::filesystem::path path;
};

// The step of a directory's name as this program gives it: 20 of "checkpoint-20"; none of "checkpoint-007" or any
// other.
std::optional<std::int64_t> checkpoint_step(std::string_view name);

// A view of an output directory; holds no state of its own, so each call looks at the disk. A checkpoint is complete
// when it holds trainer_state.json; whatever else lies in the directory (temporaries of AtomicDirectory, incomplete
// checkpoints, names such as checkpoint-007) is ignored. Not for several processes that rotate at once.
class CheckpointDirectory {
 public:
  explicit CheckpointDirectory(std::filesystem::path output_directory) : path_(std::move(output_directory)) {}
  // Of a directory that may be moved.
  explicit CheckpointDirectory(std::shared_ptr<const HeldDirectory> held) : held_(std::move(held)) {}

  std::filesystem::path path() const { return held_ ? held_->path() : path_; }
  std::filesystem::path path_of(std::int64_t step) const;

  std::vector<Checkpoint> list() const;  // the complete ones, lowest step first; none if the directory is absent
  // Those too that were complete once, by their checksums.json, and have lost trainer_state.json.
  std::vector<Checkpoint> list_with_damaged() const;
  std::optional<Checkpoint> latest() const;  // the highest step
  std::optional<Checkpoint> latest_up_to(std::int64_t step) const;

  // Removes the lowest steps until `save_total_limit` complete checkpoints are left; never the latest one. Zero or
  // less keeps all, as in transformers. Returns what was removed. A kill in the middle of it leaves each checkpoint
  // whole or, under a temporary name, not counted. What `removable` says no to stays, in addition.
  std::vector<Checkpoint> rotate(int save_total_limit,
                                 const std::function<bool(const Checkpoint&)>& removable = {}) const;

  // Returns how many of the newest checkpoints may stay if that of step `best` stays in any case (0: there is none). An
  // older best one takes one of the save_total_limit places, but the latest always stays, as in transformers.
  int newest_beside(std::int64_t best, int save_total_limit) const;

 private:
  std::vector<Checkpoint> list(std::initializer_list<const char*> signs) const;
  std::filesystem::path path_;
  std::shared_ptr<const HeldDirectory> held_;
};

// Removes what killed processes left of unfinished checkpoints, models and records in a directory whose lock (RunLock)
// the caller holds. Only under names that this program gives: checkpoint-best.tmp-17 is somebody else's.
void remove_stale_temporaries_of_runs(const std::filesystem::path& directory);

// Creates `directory` if absent and proves by writing that files can be made there; Error otherwise.
void require_writable(const std::filesystem::path& directory);
// Error unless the file system that holds `path` (or will hold it) has `bytes` free.
void require_free_space(const std::filesystem::path& path, std::uint64_t bytes);

}  // namespace so
