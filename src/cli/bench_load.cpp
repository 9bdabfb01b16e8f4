#include "cli/parse.h"

namespace so {
namespace {

ParsedCommand finish(const std::vector<std::pair<std::string, std::string>>& values, int) {
  BenchLoadOptions options;
  OptionOrigins origins;
  assign_values(bench_load_option_table().ref(options), origins, values);
  check_options(options, origins);
  return {std::move(options), std::move(origins)};
}

}  // namespace

const Command& bench_load_command() {
  static const Command command{
      "bench load",
      "time the loading of a model beside a plain read and copy",
      "Loads the model's weights to the device as generate and eval do, and prints the time beside that of reading the "
      "same bytes\nwith the same threads, and of copying as many from pinned memory to the device. The three take "
      "turns. "
      "Before that everything is read once,\nso what is measured comes from the page cache as far as it fits there.",
      {"superoffload bench load --model Qwen3-8B", "superoffload bench load --model Qwen3-8B --rounds 9 --json"},
      &bench_load_option_table(),
      finish};
  return command;
}

}  // namespace so
