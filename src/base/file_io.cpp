#include "base/file_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace so {

FileDescriptor::~FileDescriptor() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void write_all(const FileDescriptor& file, std::span<const std::byte> bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot write {}: {}", path.string(), std::strerror(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void write_all_at(const FileDescriptor& file, std::span<const std::byte> bytes, std::uint64_t offset,
                  const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot write {}: {}", path.string(), std::strerror(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

void sync_file(const FileDescriptor& file, const std::filesystem::path& path) {
  if (::fsync(file.get()) != 0) fail("cannot write {} to storage: {}", path.string(), std::strerror(errno));
}

void replace_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0)
    fail("cannot rename {} to {}: {}", from.string(), to.string(), std::strerror(errno));
  const std::filesystem::path directory = to.has_parent_path() ? to.parent_path() : ".";
  const FileDescriptor handle(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!handle) fail("cannot open directory {}: {}", directory.string(), std::strerror(errno));
  // Some file systems have nothing to sync for a directory and say EINVAL.
  if (::fsync(handle.get()) != 0 && errno != EINVAL)
    fail("cannot write directory {} to storage: {}", directory.string(), std::strerror(errno));
}

}  // namespace so
