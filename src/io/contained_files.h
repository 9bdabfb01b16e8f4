// Opens the files of a directory that others made, none of them outside of it: what a link in a model directory leads
// to would be published with the trained model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/file.h"

namespace so {

// The directory itself may be given by a link. Links inside it may lead to what lies below it. In a snapshot of a
// Hugging Face cache, REPOSITORY/snapshots/REVISION, they may also lead to REPOSITORY/blobs/HASH, or to what the
// cache's repositories share, blobs/HA/HASH beside REPOSITORY: a regular file right there, whose name is 40 or 64
// hexadecimal digits. Where a link leads is asked of the file that was opened, so a link that changes meanwhile is no
// way out.
class ContainedFiles {
 public:
  explicit ContainedFiles(const std::filesystem::path& directory);

  // Opens a file by its name in the directory, with "/" where it lies deeper. Throws Error if it lies elsewhere.
  File open(const std::string& name) const;

 private:
  bool holds(const std::filesystem::path& file) const;

  std::filesystem::path directory_, root_;  // as it was given, and without links
  std::filesystem::path repository_;        // empty: it is no snapshot
};

// All of an open file; one larger than `max_bytes` is an Error.
std::string text_of(const File& file, std::uint64_t max_bytes);

}  // namespace so
