#include "options/file_options.h"

#include "base/error.h"
#include "options/verbosity.h"

namespace so {
namespace {

constexpr const char* ours = "this program";

OptionTable<VerifyOptions> make_verify() {
  using O = VerifyOptions;
  OptionTable<O> t;
  t.group("What to check");
  t.add("dir", &O::dir, "Model directory, checkpoint, or output directory with several; --dir itself may be left out")
      .metavar("DIR")
      .required()
      .elsewhere("model")
      .elsewhere("output_dir");
  t.group("Result");
  t.add("json", &O::json, "Print the result as one JSON object on standard output").default_from(ours);
  add_verbosity(t);
  return t;
}

OptionTable<CacheOptions> make_cache() {
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
  t.add("json", &O::json, "Print what there is, or with --prune what was removed, as one JSON object")
      .default_from(ours);
  add_verbosity(t);
  return t;
}

}  // namespace

const OptionTable<CacheOptions>& cache_option_table() {
  static const OptionTable<CacheOptions> table = make_cache();
  return table;
}

const OptionTable<VerifyOptions>& verify_option_table() {
  static const OptionTable<VerifyOptions> table = make_verify();
  return table;
}

void check_options(const VerifyOptions& options, const OptionOrigins&) {
  check_required(verify_option_table().view(options));
}

void check_options(const CacheOptions& options, const OptionOrigins& origins) {
  check_required(cache_option_table().view(options));
  const int rules = (options.all ? 1 : 0) + (options.older_than >= 0 ? 1 : 0) + (options.max_size >= 0 ? 1 : 0);
  if (options.prune && rules == 0)
    fail("--prune removes what you say: add --older_than DAYS, --max_size BYTES or --all");
  if (rules > 1) fail("--older_than, --max_size and --all exclude each other: give one of them");
  for (const char* name : {"all", "older_than", "max_size"})
    if (!options.prune && rules > 0 && origins.given(name))
      fail("--{} says what to remove: add --prune, or remove it", name);
}

}  // namespace so
