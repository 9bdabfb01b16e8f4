#include "io/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/file.h"

namespace so {
namespace {

namespace fs = std::filesystem;

std::string_view name_of(fs::file_type type) {
  switch (type) {
    case fs::file_type::directory:
      return "a directory";
    case fs::file_type::symlink:
      return "a symbolic link";
    case fs::file_type::fifo:
      return "a FIFO";
    case fs::file_type::block:
    case fs::file_type::character:
      return "a device";
    default:
      return "not a regular file";
  }
}

std::string beginning_of(const fs::path& path) {
  const File file = File::open(path);
  std::string text(static_cast<std::size_t>(std::min<std::uint64_t>(file.size(), 4096)), '\0');
  file.pread_exact(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

bool same_directory(const fs::path& a, const fs::path& b) {
  const auto plain = [](const fs::path& path) {
    std::error_code ignored;
    const fs::path whole = fs::absolute(path, ignored).lexically_normal();
    return whole.has_filename() ? whole : whole.parent_path();
  };
  return !b.empty() && plain(a) == plain(b);
}

void require_directory(const fs::path& directory, const fs::path& path, std::string_view option) {
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  if (!fs::status_known(status)) fail_io("look at", directory, error.value());
  if (!fs::exists(status))
    fail("{} {}: the directory {} does not exist; make it first, or choose another file", option, printable_path(path),
         printable_path(directory));
  if (!fs::is_directory(status))
    fail("{} {}: {} is not a directory; choose another file", option, printable_path(path), printable_path(directory));
  if (::faccessat(AT_FDCWD, directory.c_str(), W_OK | X_OK, AT_EACCESS) != 0) fail_io("write to", directory, errno);
}

}  // namespace

void require_output_file(const fs::path& path, std::string_view option, const IsOwnFile& is_own, bool overwrite,
                         const fs::path& made_later) {
  if (!path.has_filename() || path.filename() == "." || path.filename() == "..")
    fail("{} {}: this is not the name of a file", option, printable_path(path));
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (!fs::status_known(status)) fail_io("look at", path, error.value());
  if (!fs::exists(status)) {
    const fs::path directory = path.has_parent_path() ? path.parent_path() : fs::path(".");
    if (!same_directory(directory, made_later)) require_directory(directory, path, option);
    return;
  }
  if (!fs::is_regular_file(status))
    fail("{} {}: it is {}, which is never written over; choose another file", option, printable_path(path),
         name_of(status.type()));
  require_directory(path.has_parent_path() ? path.parent_path() : fs::path("."), path, option);
  if (overwrite) return;
  const std::string beginning = beginning_of(path);
  if (!beginning.empty() && !is_own(beginning))
    fail("{} {}: it is there already, and this program did not write it; move it away, or choose another file", option,
         printable_path(path));
}

}  // namespace so
