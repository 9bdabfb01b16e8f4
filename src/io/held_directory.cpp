#include "io/held_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/log.h"

namespace so {
namespace {

namespace fs = std::filesystem;

bool leads_to(const fs::path& name, const struct stat& opened) {
  struct stat named {};
  return ::stat(name.c_str(), &named) == 0 && named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
}

bool was_removed(int descriptor) {
  struct stat opened {};
  return ::fstat(descriptor, &opened) == 0 && opened.st_nlink == 0;
}

int open_to_hold(const fs::path& directory) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_io("open directory", directory, errno);
  return descriptor;
}

}  // namespace

fs::path place_of(int descriptor, const fs::path& name) {
  struct stat opened {};
  if (::fstat(descriptor, &opened) != 0 || opened.st_nlink == 0 || leads_to(name, opened)) return name;
  std::error_code error;
  fs::path place = fs::read_symlink(fmt::format("/proc/self/fd/{}", descriptor), error);
  return error || !leads_to(place, opened) ? name : place;
}

HeldDirectory::HeldDirectory(fs::path name) : name_(std::move(name)), told_(name_), descriptor_(open_to_hold(name_)) {}

HeldDirectory::~HeldDirectory() { ::close(descriptor_); }

fs::path HeldDirectory::path() const {
  const std::lock_guard lock(mutex_);
  if (was_removed(descriptor_)) make_again();
  fs::path place = place_of(descriptor_, name_);
  if (place != told_) log_warning("{} is now {}: the run goes on there", printable_path(told_), printable_path(place));
  told_ = place;
  return place;
}

void HeldDirectory::make_again() const {
  fs::path free = name_;
  for (int i = 1; path_exists(free) || is_link_path(free); ++i) {
    free = name_;
    free += fmt::format(".kept-{}", i);
  }
  make_directories(free);
  ::close(std::exchange(descriptor_, open_to_hold(free)));
  log_warning("{} was removed while it was in use: what is written from now on goes to {}", printable_path(name_),
              printable_path(free));
  name_ = told_ = free;
}

}  // namespace so
