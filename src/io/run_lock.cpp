#include "io/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "io/held_directory.h"

namespace so {
namespace {

namespace fs = std::filesystem;

// Who only asks holds the lock for a moment; who wants it tries so often.
constexpr int attempts = 20;
constexpr std::chrono::milliseconds between{10};

// Opens without following a link, and regular files only. -1: absent.
int open_lock(const fs::path& file, int flags) {
  const int descriptor = ::open(file.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
  if (descriptor < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return -1;
    fail_io("open", file, errno);
  }
  struct stat status {};
  if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)) return descriptor;
  ::close(descriptor);
  fail("{} is not a regular file; remove it, or choose another --output_dir", printable_path(file));
}

// Zero, or an errno value; EWOULDBLOCK: held by another.
int lock(int descriptor, int kind) {
  while (::flock(descriptor, kind | LOCK_NB) != 0)
    if (errno != EINTR) return errno;
  return 0;
}

bool still_named(int descriptor, const fs::path& file) {
  struct stat opened {
  }, named{};
  return ::fstat(descriptor, &opened) == 0 && ::lstat(file.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

std::string this_process() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') return fmt::format("process {}", ::getpid());
  return fmt::format("process {} on {}", ::getpid(), host.data());
}

[[noreturn]] void refuse(int descriptor, const fs::path& file) {
  std::array<char, 400> text{};
  const ssize_t n = ::pread(descriptor, text.data(), text.size(), 0);
  ::close(descriptor);
  std::string holder(text.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
  holder = holder.substr(0, holder.find('\n'));
  fail("{} is in use by another run{}; wait until it ends, stop it, or choose another --output_dir",
       printable_path(file.parent_path()), holder.empty() ? "" : ": " + printable(holder));
}

}  // namespace

RunLock::RunLock(const fs::path& directory) : file_(directory / run_lock_file) {
  for (int attempt = 0;;) {
    const int opened = open_lock(file_, O_RDWR | O_CREAT);
    if (opened < 0) fail_io("create", file_, ENOENT);
    const int error = lock(opened, LOCK_EX);
    if (error == 0 && still_named(opened, file_)) {
      descriptor_ = opened;
      break;
    }
    if (error != 0 && error != EWOULDBLOCK) {
      ::close(opened);
      log_warning("{} cannot be locked here ({}): see to it that no other run writes there", printable_path(directory),
                  std::generic_category().message(error));
      return;
    }
    if (error == EWOULDBLOCK && ++attempt == attempts) refuse(opened, file_);
    ::close(opened);  // a holder that ended removed the file between our open and our lock, or it is held
    if (error == EWOULDBLOCK) std::this_thread::sleep_for(between);
  }
  const std::string text = this_process() + "\n";
  if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, text.data(), text.size(), 0) < 0)
    log_warning("{} does not name this process: {}", printable_path(file_), std::generic_category().message(errno));
}

RunLock::~RunLock() {
  if (descriptor_ < 0) return;
  // While the lock is held nobody else may remove it, so the name is ours if it was.
  if (const fs::path file = place_of(descriptor_, file_); still_named(descriptor_, file)) ::unlink(file.c_str());
  ::close(descriptor_);
}

bool RunLock::held(const fs::path& directory) {
  const int opened = ::open((directory / run_lock_file).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (opened < 0) return false;
  const bool held = lock(opened, LOCK_SH) == EWOULDBLOCK;
  ::close(opened);
  return held;
}

void RunLock::require_free(const fs::path& directory) {
  const fs::path file = directory / run_lock_file;
  const int opened = open_lock(file, O_RDONLY);
  if (opened < 0) return;
  if (lock(opened, LOCK_SH) == EWOULDBLOCK) refuse(opened, file);
  ::close(opened);
}

}  // namespace so
