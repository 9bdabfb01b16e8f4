#include <algorithm>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/quantities.h"
#include "base/result_line.h"
#include "base/standard_output.h"
#include "commands/command.h"
#include "data/cache_files.h"
#include "io/cache_directory.h"

namespace so {
namespace {

struct CacheOptions : JsonOption, MessageOptions {
  std::optional<std::string> cache_dir;
  bool prune = false;
  bool all = false;
  std::optional<double> older_than;      // days
  std::optional<std::int64_t> max_size;  // bytes
};

OptionTable<CacheOptions> cache_table() {
  using namespace default_from;
  using O = CacheOptions;
  OptionTable<O> t;
  t.group("Caches");
  t.add("cache_dir", &O::cache_dir, "Where tokenised data is kept")
      .metavar("DIR")
      .default_from("as train")
      .when_unset("$XDG_CACHE_HOME/superoffload, else ~/.cache/superoffload");
  t.add("prune", &O::prune, "Remove caches, as one of the next three says which").default_from(ours);
  t.add("all", &O::all, "All of them").default_from(ours);
  t.add("older_than", &O::older_than, "Those that were not used for so long")
      .unit("days")
      .at_least(0)
      .at_most(1e6)
      .or_else(-1.0, "any age")
      .default_from(ours);
  t.add("max_size", &O::max_size, "The longest unused, until the rest has at most this size")
      .unit("bytes")
      .at_least(0)
      .or_else(std::int64_t{-1}, "any size")
      .default_from(ours);
  t.group("Result");
  t.take(json_rows());
  t.row("json").help = "Print what there is, or with --prune what was removed, as one JSON object";
  t.group("Messages");
  t.take(message_rows());
  return t;
}

void check(CacheOptions& options, OptionOrigins& origins, int) {
  const int rules = (options.all ? 1 : 0) + (options.older_than ? 1 : 0) + (options.max_size ? 1 : 0);
  if (options.prune && rules == 0)
    fail("--prune removes what you say: add --older_than DAYS, --max_size BYTES or --all");
  if (rules > 1) fail("--older_than, --max_size and --all exclude each other: give one of them");
  for (const char* name : {"all", "older_than", "max_size"})
    if (!options.prune && rules > 0 && origins.given(name))
      fail("--{} says what to remove: add --prune, or remove it", name);
}

constexpr std::int64_t day = 24 * 60 * 60;

std::string age_of(const CacheFile& cache, std::time_t now) {
  const std::int64_t seconds = std::max<std::int64_t>(0, now - cache.used);
  if (seconds >= 2 * day) return fmt::format("{} days", seconds / day);
  if (seconds >= 2 * 3600) return fmt::format("{} h", seconds / 3600);
  return fmt::format("{} min", seconds / 60);
}

std::string data_of(const CacheFile& cache) {
  if (cache.unfinished) return "unfinished, of " + printable(cache.info.data);
  if (cache.info.version != kTokenCacheVersion)
    return fmt::format("of version {}; made again when it is used", cache.info.version);
  if (!cache.info.whole) return "damaged; made again when it is used";
  return fmt::format("{} ({} documents, {} tokens)", printable(cache.info.data), cache.info.counts.documents,
                     cache.info.counts.tokens);
}

nlohmann::ordered_json to_json(const CacheFile& cache, std::time_t now) {
  return {{"file", cache.path.string()},
          {"bytes", cache.bytes},
          {"age_seconds", std::max<std::int64_t>(0, now - cache.used)},
          {"data", cache.info.data},
          {"version", cache.info.version},
          {"whole", cache.info.whole},
          {"unfinished", cache.unfinished},
          {"documents", cache.info.whole ? cache.info.counts.documents : 0},
          {"tokens", cache.info.whole ? cache.info.counts.tokens : 0}};
}

std::uint64_t bytes_of(const std::vector<CacheFile>& caches) {
  std::uint64_t all = 0;
  for (const CacheFile& cache : caches) all += cache.bytes;
  return all;
}

void print_lines(const std::vector<CacheFile>& caches, std::time_t now) {
  for (const CacheFile& cache : caches)
    print_text("  {:>10}  {:>9}  {}  {}\n", format_bytes(cache.bytes), age_of(cache, now),
               printable_path(cache.path.filename()), data_of(cache));
}

int run(const CacheOptions& options, const OptionOrigins&) {
  const std::filesystem::path directory = cache_directories(options.cache_dir.value_or(""), {}).front();
  const std::time_t now = std::time(nullptr);
  const std::vector<CacheFile> caches = list_caches(directory);
  std::vector<CacheFile> removed;
  if (options.prune) {
    PruneRule rule;
    rule.all = options.all;
    if (options.older_than)
      rule.older_than_seconds = static_cast<std::int64_t>(*options.older_than * static_cast<double>(day));
    if (options.max_size) rule.max_bytes = static_cast<std::uint64_t>(*options.max_size);
    for (const CacheFile& cache : chosen_by(rule, caches, now))
      if (remove_cache(cache)) removed.push_back(cache);
  }
  if (options.json) {
    nlohmann::ordered_json j{{"directory", directory.string()}, {"caches", nlohmann::ordered_json::array()}};
    for (const CacheFile& cache : options.prune ? removed : caches) j["caches"].push_back(to_json(cache, now));
    j["removed"] = options.prune;
    print_json(j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  } else if (options.prune) {
    print_lines(removed, now);
    print_text("{}: {} of {} token caches removed, {} of {}\n", printable_path(directory), removed.size(),
               caches.size(), format_bytes(bytes_of(removed)), format_bytes(bytes_of(caches)));
  } else {
    print_lines(caches, now);
    print_text("{}: {} token caches, {}\n", printable_path(directory), caches.size(), format_bytes(bytes_of(caches)));
  }
  return exit_ok;
}

const RegisteredCommand cache_command([] {
  return make_command<CacheOptions>(
      {.name = "cache",
       .position = 12,
       .summary = "list or remove caches of tokenised data",
       .details =
           R"(Lists the token caches that train and eval have made: size, time since they were last used, file, and
the data they are of. With --prune, removes them: all, those that were not used for some days, or the
longest unused until the rest is small enough. Only files that begin as this program's token caches do
are removed, never through a link. A removed cache is made again when a run needs it.)",
       .examples = {"superoffload cache", "superoffload cache --prune --older_than 30",
                    "superoffload cache --prune --max_size 10000000000"}},
      cache_table(), check, run);
});

}  // namespace
}  // namespace so
