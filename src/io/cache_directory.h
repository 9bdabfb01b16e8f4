// Where token caches and other files for later runs live, who may make one, and which are trusted: those that this user
// wrote and nobody else can write to, in a directory of which the same is true.
#pragma once

#include <filesystem>
#include <system_error>
#include <vector>

#include "base/file.h"

namespace so {

// The directories to look in, best first: `chosen` alone if it is not empty; else $XDG_CACHE_HOME/superoffload (if that
// variable holds an absolute path, as its specification demands), or $HOME/.cache/superoffload; then `fallback` unless
// it is empty. In place of one that is there and is not this user's alone, "superoffload-<user's number>" in it.
std::vector<std::filesystem::path> cache_directories(const std::filesystem::path& chosen,
                                                     const std::filesystem::path& fallback);

// Creates what is missing of the way to a directory, for this user alone (mode 0700). The system's error, if any.
std::error_code make_private_directories(const std::filesystem::path& directory);

// The first of them that can be created (as above) and written to, by this user alone; logs a warning for each that
// cannot, throws Error if none can.
std::filesystem::path writable_cache_directory(const std::vector<std::filesystem::path>& directories);

// Opens a regular file, not through a link, that this user wrote and nobody else can write to, nor to its directory.
// Throws Error otherwise.
File open_own_file(const std::filesystem::path& path);

// The right to make one cache file: an exclusive lock (flock) of "PATH.lock", which stays behind, empty. The kernel
// gives the lock up when its process ends, however it ends.
class CacheLock {
 public:
  // Waits, with a line in the log, while another holds it. Where the file system has no locks nobody waits, and each
  // makes the cache for itself.
  explicit CacheLock(const std::filesystem::path& path);
  bool held() const { return held_; }

 private:
  File file_;
  bool held_ = false;
};

}  // namespace so
