// The record of what this program wrote into an output directory, so that overwriting removes that and nothing else.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <set>
#include <string>

namespace so {

inline constexpr const char* own_files_record = ".superoffload-files.json";

// Names of files relative to their directory: "metrics.jsonl", "runs/x". At most three directories deep.
using FileNames = std::set<std::string>;

// The record of one directory: a small JSON file with a checksum, replaced in one piece. A view without a state of its
// own, so each call looks at the disk; calls of one process, from any thread, take turns. A record that is damaged,
// that is no regular file, or that names anything outside the directory is an Error and changes nothing.
class OwnFiles {
 public:
  explicit OwnFiles(std::filesystem::path directory) : directory_(std::move(directory)) {}

  // None if the directory has no record.
  std::optional<FileNames> read() const;
  // Makes the record if there is none. Call it before a file appears under its name.
  void add(const FileNames& names) const;

  // Removes the regular files of these names, then each directory in the names that has become empty, and takes the
  // names out of the record. A symbolic link in any part of a name is neither removed nor followed; nothing is ever
  // removed recursively. Returns how many files went.
  std::size_t remove(const FileNames& names) const;

 private:
  std::optional<FileNames> read_unlocked() const;
  void write_unlocked(const FileNames& names) const;
  std::filesystem::path directory_;
};

// The names of all files in `directory` and down to `levels` of directories below it, each after `prefix`; links are
// named and not followed.
FileNames files_in(const std::filesystem::path& directory, const std::string& prefix = {}, int levels = 2);

// Whether `name` in `directory` is a regular file that no link leads to.
bool is_plain_file(const std::filesystem::path& directory, const std::string& name);

}  // namespace so
