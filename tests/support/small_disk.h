// A small file system that can be full.
#pragma once

#include <sys/mount.h>

#include <filesystem>

namespace so::test {

// A tmpfs on a directory, gone at the end. Mounting one needs CAP_SYS_ADMIN.
class SmallDisk {
 public:
  SmallDisk(const std::filesystem::path& where, const char* options) : where_(where) {
    std::filesystem::create_directories(where);
    mounted_ = ::mount("tmpfs", where.c_str(), "tmpfs", 0, options) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(where_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }

 private:
  std::filesystem::path where_;
  bool mounted_ = false;
};

}  // namespace so::test
