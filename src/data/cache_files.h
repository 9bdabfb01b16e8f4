// Lists the token caches of a directory, and removes those that are old or too large together.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <optional>
#include <vector>

#include "data/token_cache.h"

namespace so {

struct CacheFile {
  std::filesystem::path path;
  std::uint64_t bytes = 0;
  std::time_t used = 0;     // when it was last opened by a run, or made
  bool unfinished = false;  // what a killed process left, or another is making
  TokenCacheInfo info;
};

// The regular files of a directory that are named like token caches and begin like one, of whatever version; the most
// recently used first. Links are not followed. Throws Error if the directory cannot be listed; none if it is not there.
std::vector<CacheFile> list_caches(const std::filesystem::path& directory);

struct PruneRule {
  bool all = false;
  std::optional<std::int64_t> older_than_seconds;  // since they were last used
  std::optional<std::uint64_t> max_bytes;          // of those that stay, the most recently used
};

// Returns those of `caches` that a rule removes. Any rule removes unfinished ones that were not written to for a day.
std::vector<CacheFile> chosen_by(const PruneRule& rule, const std::vector<CacheFile>& caches, std::time_t now);

// Removes a cache and its lock, unless it is no token cache any more or a process is making it. A process in which it
// is open keeps it. Returns whether it was removed.
bool remove_cache(const CacheFile& cache);

}  // namespace so
