// Two stamps of a file differ if somebody wrote to it in between, as far as the file system tells.
#pragma once

#include <sys/stat.h>

#include <cerrno>
#include <cstdint>

#include "base/file.h"

namespace so {

struct FileStamp {
  std::uint64_t bytes = 0;
  std::int64_t modified = 0;  // in nanoseconds
  bool operator==(const FileStamp&) const = default;
};

inline FileStamp stamp_of(const File& file) {
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0) fail_io("look at", file.path(), errno);
  return {static_cast<std::uint64_t>(status.st_size), status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec};
}

}  // namespace so
