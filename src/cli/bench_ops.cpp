#include "cli/parse.h"

namespace so {
namespace {

ParsedCommand finish(const std::vector<std::pair<std::string, std::string>>& values, int) {
  BenchOpsOptions options;
  OptionOrigins origins;
  assign_values(bench_ops_option_table().ref(options), origins, values);
  check_options(options, origins);
  return {std::move(options), std::move(origins)};
}

}  // namespace

const Command& bench_ops_command() {
  static const Command command{
      "bench ops",
      "time each operation of a model's layer against its floor",
      "Runs each operation at the sizes of the model and prints its time, its floor, and the share of that limit which "
      "it "
      "reaches. The floor is bytes over the bandwidth of a large copy, or FLOPs over the rate of a large matrix "
      "product,\n"
      "both measured in the same process. Buffers go round, so that caches do not help.",
      {"superoffload bench ops --config qwen3-14b", "superoffload bench ops --config qwen3-0.6b --tokens 2048 --json"},
      &bench_ops_option_table(),
      finish};
  return command;
}

}  // namespace so
