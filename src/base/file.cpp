#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/character.h"
#include "base/error.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/mapping_guard.h"
#include "base/quantities.h"

namespace so {
namespace {

// One read or write moves at most this much; Linux itself stops at 2^31 - 4096 bytes.
constexpr std::size_t max_transfer = std::size_t{1} << 30;

std::optional<std::uint64_t> try_free_space(std::filesystem::path path) {
  struct statvfs status {};
  std::error_code ignored;
  path = std::filesystem::absolute(path, ignored);
  while (::statvfs(path.c_str(), &status) != 0) {
    if (errno == EINTR) continue;
    if ((errno != ENOENT && errno != ENOTDIR) || path == path.parent_path()) return std::nullopt;
    path = path.parent_path();
  }
  return std::uint64_t{status.f_bavail} * std::uint64_t{status.f_frsize};
}

}  // namespace

std::string printable(std::string_view text, std::size_t max_bytes) {
  std::string out;
  bool cut = false;
  if (text.size() > max_bytes) {
    std::size_t end = max_bytes;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0u) == 0x80u) --end;
    text = text.substr(0, end);
    cut = true;
  }
  while (!text.empty()) {
    const Character c = first_character(text);
    if (!steers_terminal(c))
      out += text.substr(0, c.bytes);
    else if (c.code < 0x100)
      out += fmt::format("\\x{:02x}", c.code);
    else
      out += fmt::format("\\u{:04x}", c.code);
    text.remove_prefix(c.bytes);
  }
  return cut ? out + "..." : out;
}

std::string printable_path(const std::filesystem::path& path) {
  return printable(std::string_view(path.native()), 4096);
}

void fail_io(std::string_view action, const std::filesystem::path& path, int error, std::uint64_t needed) {
  if (error == ENOSPC || error == EDQUOT) {
    const auto available = try_free_space(path);
    const std::string free_text = available ? format_bytes(*available) + " free" : std::string("free space unknown");
    const std::string need_text = needed > 0 ? "needs " + format_bytes(needed) + ", " : std::string();
    if (error == EDQUOT)
      throw NoRoom(fmt::format("disk quota exceeded on {}: {}{} on the file system", printable_path(path), need_text,
                               free_text));
    throw NoRoom(fmt::format("no space left on {}: {}{}", printable_path(path), need_text, free_text));
  }
  std::string hint;
  switch (error) {
    case EFBIG:
      hint = " (the file system's or `ulimit -f`'s limit on the size of a file)";
      break;
    case EMFILE:
      hint = " (raise `ulimit -n`)";
      break;
    case EROFS:
    case EACCES:
    case EPERM:
      hint = action == "open" ? " (this user may not read it)" : " (choose a directory that this user may use)";
      break;
    default:
      break;
  }
  const std::string size_text = needed > 0 ? fmt::format(" ({})", format_bytes(needed)) : std::string();
  const std::string text = fmt::format("cannot {} {}{}: {}{}", action, printable_path(path), size_text,
                                       std::generic_category().message(error), hint);
  if (error == EFBIG) throw NoRoom(text);
  throw Error(text);
}

File::File(std::filesystem::path path, int flags, std::string_view action) : path_(std::move(path)) {
  // O_NONBLOCK: opening a FIFO by mistake must not hang; it means nothing for regular files.
  // O_NOFOLLOW: what is written is not written through a link, which others may have put there.
  const int follow = (flags & O_ACCMODE) == O_RDONLY ? 0 : O_NOFOLLOW;
  do {
    descriptor_ = ::open(path_.c_str(), flags | follow | O_CLOEXEC | O_NONBLOCK, 0666);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0 && errno == ELOOP && follow != 0)
    fail("cannot {} {}: it is a link, and nothing is written through links; remove it, or choose another name", action,
         printable_path(path_));
  if (descriptor_ < 0) fail_io(action, path_, errno);
  struct stat status {};
  int error = 0;
  if (::fstat(descriptor_, &status) != 0) {
    error = errno;
  } else if (S_ISREG(status.st_mode)) {
    return;
  }
  ::close(std::exchange(descriptor_, -1));  // a constructor that throws has no destructor to do it
  if (error != 0) fail_io(action, path_, error);
  fail("cannot {} {}: it is {}", action, printable_path(path_),
       S_ISDIR(status.st_mode) ? "a directory" : "not a regular file");
}

File File::open(const std::filesystem::path& path) { return {path, O_RDONLY, "open"}; }
File File::create(const std::filesystem::path& path) { return {path, O_RDWR | O_CREAT | O_TRUNC, "create"}; }
File File::create_new(const std::filesystem::path& path) { return {path, O_RDWR | O_CREAT | O_EXCL, "create"}; }
File File::update(const std::filesystem::path& path) { return {path, O_RDWR, "open for writing"}; }
File File::append(const std::filesystem::path& path) { return {path, O_WRONLY | O_CREAT | O_APPEND, "append to"}; }

File::File(File&& other) noexcept : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

File::~File() {
  if (descriptor_ >= 0 && ::close(descriptor_) != 0 && errno != EINTR) {
    log_error("closing {}: {}", printable_path(path_), std::generic_category().message(errno));
  }
}

std::uint64_t File::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) fail_io("read the size of", path_, errno);
  return static_cast<std::uint64_t>(status.st_size);
}

void File::pread_exact(std::span<std::byte> out, std::uint64_t offset) const {
  while (!out.empty()) {
    const ssize_t n = ::pread(descriptor_, out.data(), std::min(out.size(), max_transfer), static_cast<off_t>(offset));
    if (n < 0) {
      if (errno == EINTR) continue;
      fail_io("read", path_, errno);
    }
    if (n == 0) fail("cannot read {}: it ends at byte {}, {} bytes early", printable_path(path_), offset, out.size());
    out = out.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
}

void File::pwrite_all(std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t n =
        ::pwrite(descriptor_, bytes.data(), std::min(bytes.size(), max_transfer), static_cast<off_t>(offset));
    if (n < 0) {
      if (errno == EINTR) continue;
      fail_io("write", path_, errno, bytes.size());
    }
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
}

void File::write_all(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(descriptor_, bytes.data(), std::min(bytes.size(), max_transfer));
    if (n < 0) {
      if (errno == EINTR) continue;
      fail_io("write", path_, errno, bytes.size());
    }
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void File::preallocate(std::uint64_t bytes) {
  if (bytes == 0) return;
  if (bytes > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max())) fail_io("write", path_, EFBIG, bytes);
  int error = 0;
  do {
    // Not posix_fallocate: where the file system cannot do it, glibc would write into every block instead.
    error = ::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == EOPNOTSUPP || error == ENOSYS) {
    const std::uint64_t available = free_space(path_);
    if (available < bytes) fail_io("write", path_, ENOSPC, bytes);
    do {
      error = ::ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    } while (error == EINTR);
  }
  if (error != 0) fail_io("write", path_, error, bytes);
}

void File::sync() {
  while (::fsync(descriptor_) != 0) {
    if (errno != EINTR) fail_io("write", path_, errno);
  }
}

void File::close() {
  if (descriptor_ < 0) return;
  // On Linux the descriptor is gone even if close() is interrupted: never call it twice.
  if (::close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR) fail_io("write", path_, errno);
}

void File::drop_cache() const { drop_cache(0, 0); }
void File::drop_cache(std::uint64_t offset, std::uint64_t bytes) const {
  ::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
}
void File::expect_sequential() const { ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_SEQUENTIAL); }

MappedFile::MappedFile(const File& file) {
  size_ = static_cast<std::size_t>(file.size());
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (address == MAP_FAILED) fail_io("map", file.path(), errno, size_);
  data_ = static_cast<const std::byte*>(address);
  guard_mapping(data_, size_, file.path());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  release_mapping(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::advise(Advice advice) const {
  if (data_ == nullptr) return;
  int native = MADV_NORMAL;
  switch (advice) {
    case Advice::normal:
      native = MADV_NORMAL;
      break;
    case Advice::sequential:
      native = MADV_SEQUENTIAL;
      break;
    case Advice::random:
      native = MADV_RANDOM;
      break;
    case Advice::will_need:
      native = MADV_WILLNEED;
      break;
    case Advice::dont_need:
      native = MADV_DONTNEED;
      break;
  }
  ::madvise(const_cast<std::byte*>(data_), size_, native);
}

void MappedFile::give_back(std::span<const std::byte> part) const {
  SO_CHECK(part.empty() || (part.data() >= data_ && part.data() + part.size() <= data_ + size_), "not in this mapping");
  if (part.empty()) return;
  // A touch of a page maps what the page cache has around it: 64 KiB, or all of a large folio, of 2 MiB at most and
  // aligned to its size. So the next part maps the end of one that has been given back already.
  constexpr std::size_t window = std::size_t{64} << 10, folio = std::size_t{2} << 20;
  const auto offset = static_cast<std::size_t>(part.data() - data_);
  const std::size_t begin = (offset - std::min(offset, window)) / folio * folio;  // the mapping begins on a page
  const std::size_t end = std::min(size_, (offset + part.size() + window + folio - 1) / folio * folio);
  ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const File file = File::open(path);
  const std::uint64_t size = file.size();
  if (size > max_bytes) {
    fail("{} has {}, more than the {} that such a file may have", printable_path(path), format_bytes(size),
         format_bytes(max_bytes));
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  file.pread_exact(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

void write_text_file_atomically(const std::filesystem::path& path, std::string_view text) {
  static std::atomic<unsigned> counter{0};  // two threads may write two files into one directory
  std::filesystem::path temporary = path;
  temporary += fmt::format(".tmp-{}-{}", ::getpid(), counter.fetch_add(1));
  try {
    ::unlink(temporary.c_str());  // an earlier process of this number may have left it, or somebody a link
    File file = File::create_new(temporary);
    file.write_all(text);
    file.sync();
    file.close();
    if (is_link_path(path))
      fail("{} is a link, which is not replaced; remove it, or choose another name", printable_path(path));
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail_io("replace", path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
  fsync_directory(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}

void remove_stale_siblings(const std::filesystem::path& path) {
  const std::string stem = path.filename().string() + ".tmp-";
  const std::filesystem::path directory = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(stem)) continue;
    if (::unlink(entry->path().c_str()) != 0 && errno != ENOENT) fail_io("remove", entry->path(), errno);
  }
}

void fsync_directory(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_io("open directory", path, errno);
  int error = 0;
  do {
    error = ::fsync(descriptor) == 0 ? 0 : errno;
  } while (error == EINTR);
  ::close(descriptor);
  // Some network file systems have no fsync of directories: their renames are durable when they return.
  if (error != 0 && error != EINVAL && error != ENOTSUP) fail_io("flush directory", path, error);
}

std::uint64_t free_space(const std::filesystem::path& path) {
  const auto available = try_free_space(path);
  if (!available) fail_io("find the free space of", path, errno);
  return *available;
}

}  // namespace so
