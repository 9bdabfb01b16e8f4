// A place for token caches that can be kept nowhere.
#pragma once

#include <filesystem>
#include <optional>

namespace so {

// A directory of this user's in the system's temporary one, made when it is first asked for and removed with all it
// holds at the end. It may hold somebody's data, so it outlives neither a signal that ends the program nor, for long, a
// process that was killed: those that such processes left are removed when the next one is made. One at a time in a
// process.
class TemporaryCache {
 public:
  TemporaryCache() = default;
  ~TemporaryCache() { remove(); }
  TemporaryCache(const TemporaryCache&) = delete;
  TemporaryCache& operator=(const TemporaryCache&) = delete;

  const std::filesystem::path& path();
  // The same if caches can be kept neither in `chosen` nor in the user's cache directory; else empty. As a fallback of
  // cache_directories().
  std::filesystem::path if_needed(const std::filesystem::path& chosen);

  // Removes it now. What maps a file in it may live on.
  void remove() noexcept;

 private:
  std::optional<std::filesystem::path> path_;
  int lock_ = -1;  // of the directory: others tell by it that we live
};

}  // namespace so
