// Whether a model directory or a checkpoint is as it was written: checksums, headers, index, and one step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/checksums.h"

namespace so {

struct DirectoryCheck {
  std::filesystem::path directory;
  std::optional<std::int64_t> step;  // a checkpoint's, as far as that can be told
  bool is_checkpoint = false;
  bool has_checksums = false;
  std::size_t files = 0;    // on the list; without one, in the directory
  std::uint64_t bytes = 0;  // of them
  double seconds = 0;
  std::vector<FileDamage> damage;  // by file name; no name: of the directory as a whole

  bool whole() const { return damage.empty(); }
};

// Reads every file that checksums.json lists (without that list: only headers and index) and compares. Never throws
// for what is wrong in the directory. `progress` is told of bytes read.
DirectoryCheck check_directory(const std::filesystem::path& directory,
                               const std::function<void(std::uint64_t)>& progress = {});

// Lists what can be checked in or under a directory: itself, if it holds a model or is a checkpoint, and its
// checkpoints, lowest step first.
std::vector<std::filesystem::path> directories_to_check(const std::filesystem::path& directory);

// checksums.json as one reading of it found it: the list, none if there is no such file, or why it cannot be used.
struct ChecksumsAsRead {
  explicit ChecksumsAsRead(const std::filesystem::path& directory);
  std::optional<Checksums> list;
  std::string error;
};

// Answers what --resume asks of a checkpoint. checksums.json is read once, so that both questions are answered by the
// same list.
class ResumeCheck {
 public:
  explicit ResumeCheck(std::filesystem::path checkpoint);
  // Throws Error naming the file, and the newest whole checkpoint before this one, unless trainer_state.json is as it
  // was written; quick.
  void require_whole_state() const;
  // The same of all files, with a line in the log. A checkpoint of a version that wrote no checksums passes with a
  // warning.
  void require_whole() const;

 private:
  std::filesystem::path checkpoint_;
  ChecksumsAsRead read_;
};

}  // namespace so
