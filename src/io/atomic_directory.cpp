#include "io/atomic_directory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/log.h"
#include "io/held_directory.h"

namespace so {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view temporary_mark = ".tmp-";
constexpr std::string_view aside_mark = ".old-";

fs::path with_mark(fs::path path, std::string_view mark) {
  path += fmt::format("{}{}", mark, ::getpid());
  return path;
}

enum class Lock { acquired, held_elsewhere, unsupported };

Lock lock_directory(int descriptor, bool wait) {
  while (::flock(descriptor, LOCK_EX | (wait ? 0 : LOCK_NB)) != 0) {
    if (errno == EWOULDBLOCK) return Lock::held_elsewhere;
    if (errno != EINTR) return Lock::unsupported;  // EBADF on NFS, ENOSYS, ENOTSUP, ENOLCK
  }
  return Lock::acquired;
}

enum class Links : std::uint8_t { refuse, follow };

// An open directory whose lock goes when it closes.
class DirectoryLock {
 public:
  explicit DirectoryLock(const fs::path& path, Links links = Links::refuse)
      : descriptor_(
            ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | (links == Links::follow ? 0 : O_NOFOLLOW))) {}
  ~DirectoryLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

bool same_file(int descriptor, const fs::path& path) {
  struct stat opened {
  }, named{};
  return ::fstat(descriptor, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

bool process_is_another_living_one(pid_t pid) { return pid != ::getpid() && (::kill(pid, 0) == 0 || errno == EPERM); }

struct MarkedName {
  std::string base;
  pid_t pid = 0;
};

std::optional<MarkedName> split_mark(const std::string& name, std::string_view mark) {
  const auto at = name.rfind(mark);
  if (at == std::string::npos || at == 0) return std::nullopt;
  const char* digits = name.data() + at + mark.size();
  const char* end = name.data() + name.size();
  MarkedName result{name.substr(0, at), 0};
  const auto [stop, error] = std::from_chars(digits, end, result.pid);
  if (error != std::errc() || stop != end || result.pid <= 0) return std::nullopt;
  return result;
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error && (path_exists(path) || is_link_path(path))) fail_io("remove", path, error.value());
}

// Calls `action` while holding the directory's lock, if no living process uses the directory. False if one does.
template <class Action>
bool if_stale(const fs::path& path, pid_t pid, Action&& action) {
  const DirectoryLock lock(path);
  if (!lock.is_open()) return false;  // gone meanwhile, or not a directory of ours
  switch (lock_directory(lock.descriptor(), false)) {
    case Lock::held_elsewhere:
      return false;
    case Lock::unsupported:
      if (process_is_another_living_one(pid)) return false;
      break;
    case Lock::acquired:
      break;
  }
  if (!same_file(lock.descriptor(), path)) return false;  // its owner renamed it between our open and our lock
  action();
  return true;
}

void sync_tree(const fs::path& directory) {
  for (const fs::path& entry : entries_of(directory)) {
    if (is_link_path(entry)) continue;
    if (is_directory_path(entry)) {
      sync_tree(entry);
    } else if (is_regular_path(entry)) {
      File::open(entry).sync();
    }
  }
  fsync_directory(directory);
}

// Zero or an errno value. `flags` as renameat2's; where the file system has no such flag, EINVAL. Names are relative to
// the open directory `at`, or paths.
int rename_with(int at, const fs::path& from, const fs::path& to, unsigned flags) {
  return ::renameat2(at, from.c_str(), at, to.c_str(), flags) == 0 ? 0 : errno;
}

bool lacks_flags(int error) { return error == EINVAL || error == ENOSYS || error == ENOTSUP; }

int rename_if_absent(int at, const fs::path& from, const fs::path& to) {
  const int error = rename_with(at, from, to, RENAME_NOREPLACE);
  if (!lacks_flags(error)) return error;
  // rename() replaces an empty directory without a word, hence the look before.
  struct stat status {};
  if (::fstatat(at, to.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) return EEXIST;
  return ::renameat(at, from.c_str(), at, to.c_str()) == 0 ? 0 : errno;
}

[[noreturn]] void fail_exists(const fs::path& path) {
  fail("{} exists already; remove it or choose another directory", printable_path(path));
}

void refuse_link(const fs::path& path) {
  if (is_link_path(path))
    fail("{} is a link, which is neither replaced nor followed; remove it or choose another directory",
         printable_path(path));
}

fs::path parent_of(const fs::path& path) { return path.parent_path(); }

fs::path normalized(const fs::path& path) {
  if (path.empty()) fail("the name of a directory is empty");
  std::error_code error;
  fs::path result = fs::absolute(path, error).lexically_normal();
  if (error) fail_io("find", path, error.value());
  if (!result.has_filename()) result = result.parent_path();  // a trailing slash
  refuse_link(result);
  return result;
}

}  // namespace

AtomicDirectory::AtomicDirectory(const fs::path& final_path, IfExists if_exists)
    : asked_path_(normalized(final_path)),
      final_name_(asked_path_.filename().string()),
      temporary_name_(with_mark(asked_path_.filename(), temporary_mark).string()),
      if_exists_(if_exists) {
  if (path_exists(asked_path_)) {
    if (if_exists == IfExists::refuse) fail_exists(asked_path_);
    if (!is_directory_path(asked_path_)) fail("{} exists and is not a directory", printable_path(asked_path_));
  }
  make_directories(parent_of(asked_path_));
  DirectoryLock parent(parent_of(asked_path_), Links::follow);
  if (!parent.is_open()) fail_io("open directory", parent_of(asked_path_), errno);
  parent_ = parent.descriptor();

  // A cleaner may look at the directory between our mkdir and our lock; then it is gone, and made again.
  for (int attempt = 0; attempt < 100; ++attempt) {
    const fs::path temporary = path();
    if (::mkdirat(parent_, temporary_name_.c_str(), 0777) != 0) {
      if (errno != EEXIST) fail_io("create directory", temporary, errno);
      // Left by a process that had our number, as happens in containers; or in use by another object of this process.
      if (!if_stale(temporary, ::getpid(), [&] { remove_tree(temporary); }) && path_exists(temporary)) {
        fail("{} is in use: {} is being written already", printable_path(temporary), printable_path(asked_path_));
      }
      continue;
    }
    DirectoryLock lock(temporary);
    if (!lock.is_open()) {
      if (errno != ENOENT) fail_io("open directory", temporary, errno);
      continue;
    }
    lock_directory(lock.descriptor(), true);
    if (!same_file(lock.descriptor(), temporary)) continue;
    lock_ = lock.release();
    parent.release();
    return;
  }
  fail("cannot create {}: another process keeps removing it", printable_path(path()));
}

AtomicDirectory::~AtomicDirectory() {
  if (!committed_) {
    std::error_code error;
    fs::remove_all(path(), error);
    if (error) log_warning("cannot remove {}: {}", printable_path(path()), error.message());
  }
  ::close(lock_);
  ::close(parent_);
}

fs::path AtomicDirectory::path() const { return place_of(parent_, parent_of(asked_path_)) / temporary_name_; }
fs::path AtomicDirectory::final_path() const { return place_of(parent_, parent_of(asked_path_)) / final_name_; }

void AtomicDirectory::commit() {
  SO_CHECK(!committed_, "{} committed twice", printable_path(asked_path_));
  sync_tree(path());

  std::optional<std::string> previous;  // the name that the replaced directory has now
  int error = rename_if_absent(parent_, temporary_name_, final_name_);
  if (error == EEXIST && if_exists_ == IfExists::refuse) fail_exists(final_path());
  if (error == EEXIST) {
    refuse_link(final_path());
    error = rename_with(parent_, temporary_name_, final_name_, RENAME_EXCHANGE);
    if (error == 0) {
      previous = temporary_name_;
    } else if (lacks_flags(error)) {
      // Two renames. The lock tells remove_stale_temporaries that somebody is alive in between.
      previous = with_mark(final_name_, aside_mark).string();
      remove_tree(final_path().parent_path() / *previous);
      const DirectoryLock lock(final_path());
      if (lock.is_open()) lock_directory(lock.descriptor(), true);
      if (::renameat(parent_, final_name_.c_str(), parent_, previous->c_str()) != 0)
        fail_io("rename", final_path(), errno);
      error = rename_if_absent(parent_, temporary_name_, final_name_);
      if (error != 0) ::renameat(parent_, previous->c_str(), parent_, final_name_.c_str());
    }
  }
  if (error != 0) fail_io("rename " + printable_path(path()) + " to", final_path(), error);
  committed_ = true;
  const fs::path parent = final_path().parent_path();
  fsync_directory(parent);
  if (previous) {
    std::error_code remains;
    fs::remove_all(parent / *previous, remains);
    if (remains) log_warning("cannot remove the previous {}: {}", printable_path(final_path()), remains.message());
  }
}

int remove_stale_temporaries(const fs::path& parent, const std::function<bool(std::string_view)>& ours) {
  std::error_code absent;
  fs::directory_iterator entries(parent, absent);
  if (absent) return 0;
  std::vector<std::string> names;  // first, since the loop renames and removes
  for (const auto& entry : entries) {
    std::string name = entry.path().filename().string();
    if (fs::is_directory(entry.symlink_status())) names.push_back(std::move(name));
  }
  int removed = 0;
  for (const std::string& name : names) {
    const fs::path path = parent / name;
    if (const auto aside = split_mark(name, aside_mark); aside && ours(aside->base)) {
      if_stale(path, aside->pid, [&] {
        const int error = rename_if_absent(AT_FDCWD, path, parent / aside->base);
        if (error == EEXIST) {
          remove_tree(path);
          ++removed;
        } else if (error != 0) {
          fail_io("give " + printable_path(path) + " its name back:", parent / aside->base, error);
        } else {
          log_warning("{} was put back: a process was killed while replacing it", printable_path(parent / aside->base));
        }
      });
    } else if (const auto mark = split_mark(name, temporary_mark); mark && ours(mark->base)) {
      if (if_stale(path, mark->pid, [&] { remove_tree(path); })) ++removed;
    }
  }
  return removed;
}

void remove_directory_atomically(const fs::path& path) {
  const fs::path target = normalized(path);
  const fs::path temporary = with_mark(target, temporary_mark);
  int error = rename_if_absent(AT_FDCWD, target, temporary);
  if (error == EEXIST && if_stale(temporary, ::getpid(), [&] { remove_tree(temporary); })) {
    error = rename_if_absent(AT_FDCWD, target, temporary);
  }
  if (error != 0) fail_io("remove", target, error);
  fsync_directory(parent_of(target));
  remove_tree(temporary);
}

}  // namespace so
