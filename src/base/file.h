// Files, mappings and small-file helpers. Every failure is an Error that names the path, the operating
// system's reason and, where there is one, the fix. Nothing here keeps global state; the only locks are the kernel's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace so {

// Untrusted text (a tensor name, a path) made fit for a one-line message: control characters are escaped, and text
// beyond `max_bytes` is cut with "..." at a UTF-8 boundary.
std::string printable(std::string_view text, std::size_t max_bytes = 200);
std::string printable_path(const std::filesystem::path& path);

// Throws Error: "cannot <action> <path>: <reason>". For a full disk or quota the message says how much was needed
// (`needed` bytes; 0: unknown) and how much is free.
[[noreturn]] void fail_io(std::string_view action, const std::filesystem::path& path, int error,
                          std::uint64_t needed = 0);

// An open regular file. Movable, closes itself; offsets and sizes are bytes. pread_exact and pwrite_all may be called
// from several threads at once; everything else belongs to one thread at a time.
class File {
 public:
  File() = default;                                           // closed
  static File open(const std::filesystem::path& path);        // an existing file, for reading
  static File create(const std::filesystem::path& path);      // reading and writing; emptied if it exists
  static File create_new(const std::filesystem::path& path);  // as create(), but an existing file is an error
  static File update(const std::filesystem::path& path);      // an existing file, for reading and writing
  static File append(const std::filesystem::path& path);      // write_all() goes to the end; created if absent
  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  // Closes. A failure is only logged: after writing, call sync() or close() where it can still be acted upon.
  ~File();

  bool is_open() const { return descriptor_ >= 0; }
  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  std::uint64_t size() const;

  // Fills `out` from `offset`; the file ending early is an Error.
  void pread_exact(std::span<std::byte> out, std::uint64_t offset) const;
  void pwrite_all(std::span<const std::byte> bytes, std::uint64_t offset);
  void write_all(std::span<const std::byte> bytes);  // at the current position (the end, for append())
  void write_all(std::string_view text) { write_all(std::as_bytes(std::span(text))); }

  // Sets the size of a file that was just created to `bytes` and claims the blocks, so that a full disk fails here and
  // not after an hour of writing. Where the file system cannot claim blocks (NFS before 4.2, for one), the free space
  // is compared with `bytes` instead.
  void preallocate(std::uint64_t bytes);
  void sync();   // data and size are on the device when it returns
  void close();  // reports what the kernel could not write
  // Tells the kernel that cached pages of this file will not be read again. Advice: never fails.
  void drop_cache() const;
  void drop_cache(std::uint64_t offset, std::uint64_t bytes) const;  // of this part; whole pages only
  // Tells the kernel to read further ahead. Advice: never fails.
  void expect_sequential() const;

 private:
  File(std::filesystem::path path, int flags, std::string_view action);
  std::filesystem::path path_;
  int descriptor_ = -1;
};

// A read-only mapping of a whole file. The bytes are valid while the object lives; a file that another process
// shortens meanwhile raises SIGBUS, which is why headers are read with pread. An empty file maps to an empty span.
class MappedFile {
 public:
  enum class Advice { normal, sequential, random, will_need, dont_need };

  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path) : MappedFile(File::open(path)) {}
  explicit MappedFile(const File& file);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  std::size_t size() const { return size_; }
  void advise(Advice advice) const;  // over the whole mapping; never fails
  // The pages inside `part` count no longer as this process's memory; the page cache may keep them, and another look
  // finds them there. For who passes over a large file, so that its size does not show in the process's. Never fails.
  void give_back(std::span<const std::byte> part) const;

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// The whole file; larger than `max_bytes` is an Error.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes);

// Replaces `path` so that whoever opens it, also after a crash, finds the old text or the new one, never a mixture:
// written to a sibling, flushed to the device, renamed.
void write_text_file_atomically(const std::filesystem::path& path, std::string_view text);
// Removes the siblings that killed processes left of such writes of `path`. Only when nobody is writing it.
void remove_stale_siblings(const std::filesystem::path& path);

// Makes renames, creations and removals in a directory durable.
void fsync_directory(const std::filesystem::path& path);

// Bytes an unprivileged process can still write to the file system that holds `path`, or will hold it: the nearest
// existing ancestor is asked. Quotas do not show here.
std::uint64_t free_space(const std::filesystem::path& path);

}  // namespace so
