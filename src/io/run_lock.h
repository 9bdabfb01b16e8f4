// One run at a time in an output directory.
#pragma once

#include <filesystem>

namespace so {

inline constexpr const char* run_lock_file = ".superoffload-lock";

// The right to write into a directory, held while the object lives: an exclusive lock (flock) of DIRECTORY's
// .superoffload-lock, whose text names the host and the process. The kernel gives the lock up when the process ends,
// however it ends, so a file that a killed process left stands in nobody's way; on NFS it reaches as far as flock does,
// to the other hosts. The destructor removes the file. Where the file system has no locks, a warning is logged and
// nothing is held. Readers take no lock.
class RunLock {
 public:
  // Throws Error, naming the holder and what to do, if another run holds it.
  explicit RunLock(const std::filesystem::path& directory);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Whether a run holds it; false too where that cannot be found out. Changes nothing.
  static bool held(const std::filesystem::path& directory);

  // The same refusal without taking the lock; changes nothing. The directory may be absent.
  static void require_free(const std::filesystem::path& directory);

 private:
  std::filesystem::path file_;
  int descriptor_ = -1;
};

}  // namespace so
