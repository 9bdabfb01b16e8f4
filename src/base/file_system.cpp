#include "base/file_system.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/quantities.h"

namespace so {
namespace {

namespace fs = std::filesystem;

fs::file_status known(fs::file_status status, const fs::path& path, const std::error_code& error) {
  if (!fs::status_known(status)) fail_io("look at", path, error.value());
  return status;
}

fs::file_status status_of(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return known(status, path, error);
}

}  // namespace

bool path_exists(const fs::path& path) { return fs::exists(status_of(path)); }
bool is_directory_path(const fs::path& path) { return fs::is_directory(status_of(path)); }
bool is_regular_path(const fs::path& path) { return fs::is_regular_file(status_of(path)); }

bool is_link_path(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  return fs::is_symlink(known(status, path, error));
}

std::vector<fs::path> entries_of(const fs::path& directory) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
    entries.push_back(entry->path());
  if (error) fail_io("list", directory, error.value());
  std::sort(entries.begin(), entries.end());
  return entries;
}

void make_directories(const fs::path& path) {
  std::vector<fs::path> made;
  for (fs::path at = path; !at.empty() && !path_exists(at); at = at.parent_path()) made.push_back(at);
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail_io("create directory", path, error.value());
  for (const fs::path& directory : made) {
    const fs::path parent = directory.parent_path();
    try {
      fsync_directory(parent.empty() ? "." : parent);
    } catch (const Error& unreadable) {  // it may be written to, and not opened
      log_debug("{}", unreadable.what());
    }
  }
}

void remove_path(const fs::path& path) {
  std::error_code error;
  fs::remove(path, error);
  if (error) fail_io("remove", path, error.value());
}

void rename_path(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail_io("rename to", to, error.value());
}

void copy_regular_file(const fs::path& from, const fs::path& to, std::uint64_t max_bytes) {
  copy_regular_file(File::open(from), to, max_bytes);
}

void copy_regular_file(const File& source, const fs::path& to, std::uint64_t max_bytes) {
  const std::uint64_t size = source.size();
  if (size > max_bytes)
    fail("{} has {}, more than the {} that such a file may have", printable_path(source.path()), format_bytes(size),
         format_bytes(max_bytes));
  File copy = File::create(to);
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min<std::uint64_t>(size, 1 << 20)));
  for (std::uint64_t at = 0; at < size;) {
    const auto part =
        std::span(piece).first(static_cast<std::size_t>(std::min<std::uint64_t>(size - at, piece.size())));
    source.pread_exact(part, at);
    copy.write_all(part);
    at += part.size();
  }
  copy.sync();
  copy.close();
}

void refuse_lfs_pointer(const fs::path& path) {
  constexpr std::string_view begins = "version https://git-lfs.github.com/spec/";
  constexpr std::uint64_t longest = 1024;
  const File file = File::open(path);
  if (file.size() < begins.size() || file.size() > longest) return;
  std::string text(begins.size(), '\0');
  file.pread_exact(std::as_writable_bytes(std::span(text)), 0);
  if (text == begins)
    fail("{} is a pointer of Git LFS, not the file itself; fetch it with `git lfs pull`, or download the model again",
         printable_path(path));
}

}  // namespace so
