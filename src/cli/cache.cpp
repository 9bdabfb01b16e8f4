#include "cli/parse.h"

namespace so {
namespace {

ParsedCommand finish(const std::vector<std::pair<std::string, std::string>>& values, int) {
  CacheOptions options;
  OptionOrigins origins;
  assign_values(cache_option_table().ref(options), origins, values);
  check_options(options, origins);
  return {std::move(options), std::move(origins)};
}

}  // namespace

const Command& cache_command() {
  static const Command command{
      "cache",
      "list or remove caches of tokenised data",
      "Lists the token caches that train and eval have made: size, time since they were last used, file, and the data "
      "they\n"
      "are of. With --prune, removes them: all, those that were not used for some days, or the longest unused until "
      "the\n"
      "rest is small enough. Only files that begin as this program's token caches do are removed, never through a "
      "link. A\n"
      "removed cache is made again when a run needs it.",
      {"superoffload cache", "superoffload cache --prune --older_than 30",
       "superoffload cache --prune --max_size 10000000000"},
      &cache_option_table(),
      finish};
  return command;
}

}  // namespace so
