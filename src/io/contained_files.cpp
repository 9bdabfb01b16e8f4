#include "io/contained_files.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <system_error>

#include "base/error.h"
#include "base/quantities.h"

namespace so {
namespace {

namespace fs = std::filesystem;

bool is_blob_name(std::string_view name) {
  return (name.size() == 40 || name.size() == 64) && name.find_first_not_of("0123456789abcdef") == name.npos;
}

fs::path real_place(const File& file) {
  std::error_code error;
  fs::path place = fs::read_symlink(fmt::format("/proc/self/fd/{}", file.descriptor()), error);
  if (error) fail_io("find the place of", file.path(), error.value());
  return place;
}

}  // namespace

ContainedFiles::ContainedFiles(const fs::path& directory) : directory_(directory) {
  std::error_code error;
  root_ = fs::canonical(directory, error);
  if (error) fail_io("open directory", directory, error.value());
  for (fs::path at = root_; repository_.empty() && at.has_relative_path(); at = at.parent_path())
    if (at.parent_path().filename() == "snapshots") repository_ = at.parent_path().parent_path();
}

bool ContainedFiles::holds(const fs::path& file) const {
  const std::string name = file.filename().string();
  if (!repository_.empty() && is_blob_name(name)) {
    if (file.parent_path() == repository_ / "blobs") return true;
    if (file.parent_path() == repository_.parent_path() / "blobs" / name.substr(0, 2)) return true;
  }
  return std::mismatch(root_.begin(), root_.end(), file.begin(), file.end()).first == root_.end();
}

File ContainedFiles::open(const std::string& name) const {
  File file = File::open(directory_ / name);
  if (const fs::path place = real_place(file); !holds(place))
    fail(
        "{} is a link out of its directory, to {}, whose contents would become part of what is made from it; if they "
        "are meant to be, put a copy in the link's place (cp -L), else remove the link",
        printable_path(directory_ / name), printable_path(place));
  return file;
}

std::string text_of(const File& file, std::uint64_t max_bytes) {
  const std::uint64_t size = file.size();
  if (size > max_bytes)
    fail("{} has {}, more than the {} that such a file may have", printable_path(file.path()), format_bytes(size),
         format_bytes(max_bytes));
  std::string text(static_cast<std::size_t>(size), '\0');
  file.pread_exact(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

}  // namespace so
