// Writing files so that a reader sees the old content or the whole new one, never a part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>

namespace so {

// Owns a POSIX file descriptor; -1 is "none". Closing ignores errors: call sync_file first where they matter.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}
  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  explicit operator bool() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

// All functions throw Error naming `path` and the system's reason; `path` serves the message only where there is a
// descriptor.

// Writes every byte, however many calls it takes, at the descriptor's position.
void write_all(const FileDescriptor& file, std::span<const std::byte> bytes, const std::filesystem::path& path);
// The same at a byte offset from the beginning; does not move the position.
void write_all_at(const FileDescriptor& file, std::span<const std::byte> bytes, std::uint64_t offset,
                  const std::filesystem::path& path);
// Returns when the content is on stable storage (fsync).
void sync_file(const FileDescriptor& file, const std::filesystem::path& path);
// Renames `from` to `to`, replacing it atomically, and makes the rename durable (fsync of the directory). Both must lie
// in one file system, and `from` must have been synced.
void replace_file(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace so
