#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/file_io.h"

namespace so {

MappedFile::MappedFile(const std::filesystem::path& path, Access access) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer before fstat can refuse it.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) fail("cannot open {}: {}", path.string(), std::strerror(errno));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail("cannot stat {}: {}", path.string(), std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail("{} is not a regular file: it cannot be mapped into memory", path.string());
  if (status.st_size == 0) return;  // mmap refuses a length of zero

  const auto size = static_cast<std::size_t>(status.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) fail("cannot map {} ({} bytes) into memory: {}", path.string(), size, std::strerror(errno));
  ::madvise(data, size, access == Access::sequential ? MADV_SEQUENTIAL : MADV_NORMAL);
  data_ = static_cast<const std::byte*>(data);
  size_ = size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace so
