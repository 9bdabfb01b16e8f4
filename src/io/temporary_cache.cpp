#include "io/temporary_cache.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "io/cache_directory.h"

namespace so {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view name_begins = "superoffload-cache-";

// The signal handler needs these, so they lie in memory that is always there.
std::atomic<int> held_descriptor{-1};
std::array<char, 4096> held_path;

constexpr int ending_signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGUSR1, SIGUSR2, SIGXCPU, SIGALRM};

// One entry as the kernel gives it; readdir() may allocate, which a signal handler may not.
struct Entry {
  std::uint64_t inode;
  std::int64_t offset;
  unsigned short bytes;
  unsigned char type;
  char name[1];
};

// Other threads may still be making files, hence some attempts.
void remove_held_directory(int descriptor) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    ::lseek(descriptor, 0, SEEK_SET);
    alignas(Entry) std::array<char, 4096> entries;
    for (long n; (n = ::syscall(SYS_getdents64, descriptor, entries.data(), entries.size())) > 0;)
      for (long at = 0; at < n;) {
        const auto* entry = reinterpret_cast<const Entry*>(entries.data() + at);
        ::unlinkat(descriptor, entry->name, 0);
        at += entry->bytes;
      }
    if (::rmdir(held_path.data()) == 0 || errno != ENOTEMPTY) return;
  }
}

extern "C" void remove_and_end(int signal) {
  if (const int descriptor = held_descriptor.exchange(-1); descriptor >= 0) remove_held_directory(descriptor);
  ::signal(signal, SIG_DFL);
  ::raise(signal);  // comes when the handler returns
}

// Only where the signal would end the program: whoever ignores or handles it knows why.
void handle_ending_signals() {
  for (const int signal : ending_signals) {
    struct sigaction now {};
    if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
      struct sigaction action {};
      action.sa_handler = remove_and_end;
      ::sigaction(signal, &action, nullptr);
    }
  }
}

void leave_ending_signals() {
  for (const int signal : ending_signals) {
    struct sigaction now {};
    if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == remove_and_end) ::signal(signal, SIG_DFL);
  }
}

int open_directory(const fs::path& path) {
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

bool is_at(int descriptor, const fs::path& path) {
  struct stat opened {
  }, named{};
  return ::fstat(descriptor, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

// Those of this user whose process no longer holds the lock. Never fails: they are looked for again the next time.
void remove_abandoned(const fs::path& parent) {
  std::error_code error;
  for (fs::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(name_begins)) continue;
    const int descriptor = open_directory(entry->path());
    if (descriptor < 0) continue;
    struct stat status {};
    std::error_code ignored;
    if (::fstat(descriptor, &status) == 0 && status.st_uid == ::geteuid() &&
        ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 && is_at(descriptor, entry->path()) &&
        fs::remove_all(entry->path(), ignored) > 0 && !ignored)
      log_info("removed {}, which a process that was killed had left", printable_path(entry->path()));
    ::close(descriptor);
  }
}

}  // namespace

void TemporaryCache::remove() noexcept {
  if (!path_) return;
  leave_ending_signals();
  held_descriptor = -1;
  std::error_code ignored;
  fs::remove_all(*path_, ignored);
  ::close(std::exchange(lock_, -1));
  path_.reset();
}

const fs::path& TemporaryCache::path() {
  if (path_) return *path_;
  std::error_code error;
  const fs::path parent = fs::temp_directory_path(error);
  if (error) fail_io("use the directory for temporary files", parent, error.value());
  remove_abandoned(parent);
  for (;;) {
    std::string name = (parent / (std::string(name_begins) + "XXXXXX")).string();
    if (name.size() >= held_path.size()) fail_io("make", name, ENAMETOOLONG);
    if (::mkdtemp(name.data()) == nullptr) fail_io("make", name, errno);
    lock_ = open_directory(name);
    if (lock_ < 0) fail_io("open", name, errno);
    ::flock(lock_, LOCK_EX);
    // Another process may have taken it for abandoned before it was locked.
    if (!is_at(lock_, name)) {
      ::close(std::exchange(lock_, -1));
      continue;
    }
    path_ = name;
    std::copy_n(name.c_str(), name.size() + 1, held_path.begin());
    held_descriptor = lock_;
    handle_ending_signals();
    return *path_;
  }
}

fs::path TemporaryCache::if_needed(const fs::path& chosen) {
  if (!chosen.empty()) return {};
  try {
    const fs::path directory = cache_directories({}, {}).front();
    if (!make_private_directories(directory) && ::access(directory.c_str(), W_OK | X_OK) == 0) return {};
  } catch (const Error&) {  // there is no such directory
  }
  return path();
}

}  // namespace so
