// A directory that is held by descriptor, so that it is still the same one after it was renamed or moved, whatever its
// old name is given to.
#pragma once

#include <filesystem>
#include <mutex>

namespace so {

// Returns the path of an open directory or file: `name` while that leads to it, and where it was removed; else where it
// is now. Never fails.
std::filesystem::path place_of(int descriptor, const std::filesystem::path& name);

class HeldDirectory {
 public:
  explicit HeldDirectory(std::filesystem::path name);  // Throws Error if there is no such directory.
  ~HeldDirectory();
  HeldDirectory(const HeldDirectory&) = delete;
  HeldDirectory& operator=(const HeldDirectory&) = delete;

  // Returns where the directory is now. That it was moved is logged once for each place. If it was removed, an empty
  // one is made in its stead: under its name if that is free, else beside it, so that nothing of others is written
  // over. Any thread.
  std::filesystem::path path() const;

 private:
  void make_again() const;

  mutable std::mutex mutex_;
  mutable std::filesystem::path name_, told_;
  mutable int descriptor_ = -1;
};

}  // namespace so
