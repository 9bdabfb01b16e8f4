#include "cli/parse.h"

namespace so {
namespace {

ParsedCommand finish(const std::vector<std::pair<std::string, std::string>>& values, int) {
  PlanOptions options;
  OptionOrigins origins;
  assign_values(plan_option_table().ref(options), origins, values);
  check_options(options, origins);
  return {std::move(options), std::move(origins)};
}

}  // namespace

const Command& plan_command() {
  static const Command command{
      "plan",
      "what a training run would need and do, on any machine, without a GPU",
      "Plans a step as train does, from a model's config and what is known of a machine: what the GPU and the host "
      "would hold,\n"
      "who owns the optimizer state, what is recomputed, how long a step is expected to take, who waits for whom, and "
      "a "
      "sketch\n"
      "of it in time. --explain says what else there was to choose and why it lost. What does not fit is refused with "
      "what is\n"
      "short. Nothing is allocated; weights are not needed.",
      {"superoffload plan --model qwen3-14b",
       "superoffload plan --model gpt-oss-20b --optimizer_state_dtype bf16 --hardware gh200 --json",
       "superoffload plan --model qwen3-14b --explain split --trace expected.json"},
      &plan_option_table(),
      finish};
  return command;
}

}  // namespace so
