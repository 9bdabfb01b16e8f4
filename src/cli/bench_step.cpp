#include "cli/parse.h"

namespace so {
namespace {

ParsedCommand finish(const std::vector<std::pair<std::string, std::string>>& values, int) {
  BenchStepOptions options;
  OptionOrigins origins;
  assign_values(bench_step_option_table().ref(options), origins, values);
  check_options(options, origins);
  return {std::move(options), std::move(origins)};
}

}  // namespace

const Command& bench_step_command() {
  static const Command command{
      "bench step",
      "time training steps of a model with random weights",
      "Makes random weights and tokens on the device, runs training steps, and prints the step time, tokens/s, TFLOP/s "
      "beside\n"
      "the rate of a large matrix product in the same process, peak memory beside the plan, and where the time of a "
      "step "
      "went.\n"
      "TFLOP/s count the model's own work: recomputation does not count. What does not fit is refused.",
      {"superoffload bench step --config qwen3-4b --batch_size 4 --max_length 4096",
       "superoffload bench step --config llama-3.1-8b --no_optimizer --trace step.json --json"},
      &bench_step_option_table(),
      finish};
  return command;
}

}  // namespace so
