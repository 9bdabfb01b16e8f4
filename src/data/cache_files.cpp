#include "data/cache_files.h"

#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"

namespace so {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view suffix = ".tokens", unfinished_mark = ".tokens.tmp-", lock_suffix = ".lock";
constexpr std::time_t day = 24 * 60 * 60;

// A regular file that is no link; none if it cannot be opened.
std::optional<File> open_own(const fs::path& path) {
  struct stat named {
  }, opened{};
  if (::lstat(path.c_str(), &named) != 0 || !S_ISREG(named.st_mode)) return std::nullopt;
  try {
    File file = File::open(path);
    const bool same = ::fstat(file.descriptor(), &opened) == 0 && opened.st_dev == named.st_dev &&
                      opened.st_ino == named.st_ino;  // no link has taken its place meanwhile
    if (same) return file;
  } catch (const Error&) {
  }
  return std::nullopt;
}

std::optional<CacheFile> look_at(const fs::path& path) {
  const std::string name = path.filename().string();
  const bool unfinished = name.find(unfinished_mark) != name.npos;
  if (!unfinished && !name.ends_with(suffix)) return std::nullopt;
  const auto file = open_own(path);
  struct stat status {};
  if (!file || ::fstat(file->descriptor(), &status) != 0) return std::nullopt;
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  std::array<std::byte, 4096> begin{};
  const auto there = std::span(begin).first(static_cast<std::size_t>(std::min<std::uint64_t>(bytes, begin.size())));
  try {
    file->pread_exact(there, 0);
  } catch (const Error&) {  // shortened at this moment
    return std::nullopt;
  }
  auto info = read_token_cache_info(there, bytes);
  if (!info) return std::nullopt;
  return CacheFile{path, bytes, status.st_mtime, unfinished, std::move(*info)};
}

// "X.tokens.lock" of "X.tokens" and of "X.tokens.tmp-1-2".
fs::path lock_of(const fs::path& cache) {
  std::string name = cache.filename().string();
  if (const auto mark = name.find(unfinished_mark); mark != name.npos) name.resize(mark + suffix.size());
  return cache.parent_path() / (name + std::string(lock_suffix));
}

}  // namespace

std::vector<CacheFile> list_caches(const fs::path& directory) {
  std::vector<CacheFile> found;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
    if (auto cache = look_at(entry->path())) found.push_back(std::move(*cache));
  if (error && error != std::errc::no_such_file_or_directory) fail_io("list", directory, error.value());
  std::sort(found.begin(), found.end(), [](const CacheFile& a, const CacheFile& b) {
    return a.used != b.used ? a.used > b.used : a.path < b.path;
  });
  return found;
}

std::vector<CacheFile> chosen_by(const PruneRule& rule, const std::vector<CacheFile>& caches, std::time_t now) {
  std::vector<CacheFile> chosen;
  std::uint64_t kept = 0;
  for (const CacheFile& cache : caches) {
    const std::time_t age = now - cache.used;
    bool goes = rule.all || (rule.older_than_seconds && age > *rule.older_than_seconds);
    if (cache.unfinished) goes = age > day;
    if (!cache.unfinished && rule.max_bytes && !goes) {
      goes = cache.bytes > *rule.max_bytes - std::min(kept, *rule.max_bytes);
      if (!goes) kept += cache.bytes;
    }
    if (goes) chosen.push_back(cache);
  }
  return chosen;
}

bool remove_cache(const CacheFile& cache) {
  const fs::path lock_path = lock_of(cache.path);
  const auto lock = open_own(lock_path);
  if (lock && ::flock(lock->descriptor(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  if (!look_at(cache.path)) return false;
  remove_path(cache.path);
  if (lock && lock->size() == 0 && !cache.unfinished) remove_path(lock_path);
  return true;
}

}  // namespace so
