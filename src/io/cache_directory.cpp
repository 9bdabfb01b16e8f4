#include "io/cache_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/log.h"

namespace so {
namespace {

constexpr mode_t by_others = S_IWGRP | S_IWOTH;

// Why this file or directory is not this user's alone; empty: it is.
std::string not_own(const struct stat& status) {
  if (status.st_uid != ::geteuid())
    return fmt::format("it belongs to user {}, this is user {}", status.st_uid, ::geteuid());
  if ((status.st_mode & by_others) != 0)
    return fmt::format("others may write to it (mode {:04o})", static_cast<unsigned>(status.st_mode & 07777U));
  return {};
}

// Which of a directory's parts is this user's: itself, or one in it.
std::filesystem::path own_part(const std::filesystem::path& directory) {
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || not_own(status).empty()) return directory;
  return directory / fmt::format("superoffload-{}", ::geteuid());
}

std::string not_own(const std::filesystem::path& directory) {
  struct stat status {};
  return ::stat(directory.c_str(), &status) != 0 ? std::strerror(errno) : not_own(status);
}

}  // namespace

std::vector<std::filesystem::path> cache_directories(const std::filesystem::path& chosen,
                                                     const std::filesystem::path& fallback) {
  if (!chosen.empty()) return {own_part(chosen)};
  std::vector<std::filesystem::path> directories;
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (xdg != nullptr && xdg[0] == '/')
    directories.push_back(std::filesystem::path(xdg) / "superoffload");
  else if (home != nullptr && home[0] == '/')
    directories.push_back(std::filesystem::path(home) / ".cache" / "superoffload");
  if (!fallback.empty()) directories.push_back(fallback);
  for (std::filesystem::path& directory : directories) directory = own_part(directory);
  if (directories.empty()) fail("there is no place for the token cache: neither XDG_CACHE_HOME nor HOME is set");
  return directories;
}

std::error_code make_private_directories(const std::filesystem::path& directory) {
  std::error_code error;
  if (std::filesystem::is_directory(directory, error)) return {};
  const std::filesystem::path parent = directory.parent_path();
  if (!parent.empty() && parent != directory)
    if (const std::error_code above = make_private_directories(parent)) return above;
  if (!directory.has_filename() || ::mkdir(directory.c_str(), 0700) == 0) return {};
  const int code = errno;
  if (code == EEXIST && std::filesystem::is_directory(directory, error)) return {};  // another process was quicker
  return {code == EEXIST ? ENOTDIR : code, std::generic_category()};
}

std::filesystem::path writable_cache_directory(const std::vector<std::filesystem::path>& directories) {
  for (std::size_t i = 0; i < directories.size(); ++i) {
    const auto& directory = directories[i];
    const std::error_code error = make_private_directories(directory);
    std::string reason = error ? error.message() : "";
    if (!error && ::access(directory.c_str(), W_OK | X_OK) != 0) reason = std::strerror(errno);
    if (reason.empty()) reason = not_own(directory);
    if (reason.empty()) return directory;
    if (i + 1 == directories.size())
      fail("cannot write the token cache to {}: {}; choose another cache directory", directory.string(), reason);
    log_warning("cannot write the token cache to {}: {}; using {}", directory.string(), reason,
                directories[i + 1].string());
  }
  SO_BUG("no cache directory to choose from");
}

File open_own_file(const std::filesystem::path& path) {
  File file = File::open(path);
  struct stat named {
  }, opened{};
  if (::lstat(path.c_str(), &named) != 0 || ::fstat(file.descriptor(), &opened) != 0) fail_io("look at", path, errno);
  if (named.st_dev != opened.st_dev || named.st_ino != opened.st_ino)
    fail("{} is not trusted: it is a link", printable_path(path));
  if (const std::string reason = not_own(opened); !reason.empty())
    fail("{} is not trusted: {}", printable_path(path), reason);
  const std::filesystem::path directory = path.has_parent_path() ? path.parent_path() : ".";
  if (const std::string reason = not_own(directory); !reason.empty())
    fail("{} is not trusted, nor is what lies in it: {}", printable_path(directory), reason);
  return file;
}

CacheLock::CacheLock(const std::filesystem::path& path) {
  const std::string name = path.string() + ".lock";
  file_ = File::append(name);
  held_ = ::flock(file_.descriptor(), LOCK_EX | LOCK_NB) == 0;
  if (held_) return;
  if (errno == EWOULDBLOCK) {
    log_info("waiting for another process to make {}", path.string());
    int status = 0;
    do status = ::flock(file_.descriptor(), LOCK_EX);
    while (status != 0 && errno == EINTR);
    held_ = status == 0;
  }
  if (!held_) log_debug("cannot lock {}: {}; making the cache without", name, std::strerror(errno));
}

}  // namespace so
