#include "data/cache_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/log.h"

namespace so {

std::vector<std::filesystem::path> cache_directories(const std::filesystem::path& chosen,
                                                     const std::filesystem::path& fallback) {
  if (!chosen.empty()) return {chosen};
  std::vector<std::filesystem::path> directories;
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (xdg != nullptr && xdg[0] == '/')
    directories.push_back(std::filesystem::path(xdg) / "superoffload");
  else if (home != nullptr && home[0] == '/')
    directories.push_back(std::filesystem::path(home) / ".cache" / "superoffload");
  if (!fallback.empty()) directories.push_back(fallback);
  if (directories.empty()) fail("there is no place for the token cache: neither XDG_CACHE_HOME nor HOME is set");
  return directories;
}

std::filesystem::path writable_cache_directory(const std::vector<std::filesystem::path>& directories) {
  for (std::size_t i = 0; i < directories.size(); ++i) {
    const auto& directory = directories[i];
    std::error_code error;
    std::filesystem::create_directories(directory, error);
    std::string reason = error ? error.message() : "";
    if (!error && ::access(directory.c_str(), W_OK | X_OK) != 0) reason = std::strerror(errno);
    if (reason.empty()) return directory;
    if (i + 1 == directories.size())
      fail("cannot write the token cache to {}: {}; choose another cache directory", directory.string(), reason);
    log_warning("cannot write the token cache to {}: {}; using {}", directory.string(), reason,
                directories[i + 1].string());
  }
  SO_CHECK(false, "no cache directory to choose from");
  return {};
}

CacheLock::CacheLock(const std::filesystem::path& path) {
  const std::string name = path.string() + ".lock";
  file_ = File::append(name);
  if (::flock(file_.descriptor(), LOCK_EX | LOCK_NB) == 0) return;
  if (errno == EWOULDBLOCK) {
    log_info("waiting for another process to make {}", path.string());
    int status = 0;
    do status = ::flock(file_.descriptor(), LOCK_EX);
    while (status != 0 && errno == EINTR);
    if (status == 0) return;
  }
  fail("cannot lock {}: {}; choose a cache directory on a file system with locks", name, std::strerror(errno));
}

}  // namespace so
