// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace so {

// Owns the mapping, not the bytes: they are the file's, paged in on first use and dropped by the kernel under memory
// pressure. The file must not be shortened while it is mapped (reading beyond its new end is a SIGBUS); replacing it
// by rename is safe. Reading from several threads is. Move-only; a default-constructed one is empty.
class MappedFile {
 public:
  enum class Access { sequential, random };  // a hint for the kernel's read-ahead

  MappedFile() = default;
  // Throws Error, naming the file, if it is absent, unreadable or not a regular file.
  MappedFile(const std::filesystem::path& path, Access access);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace so
