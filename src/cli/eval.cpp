#include "cli/parse.h"

namespace so {
namespace {

ParsedCommand finish(const std::vector<std::pair<std::string, std::string>>& values, int) {
  EvalOptions options;
  OptionOrigins origins;
  assign_values(eval_option_table().ref(options), origins, values);
  check_options(options, origins);
  return {std::move(options), std::move(origins)};
}

}  // namespace

const Command& eval_command() {
  static const Command command{
      "eval",
      "measure the loss of a model on records",
      "Prints the mean loss per trained token and the perplexity of a model on records of the kinds that train takes.",
      {"superoffload eval --model out --data held-out.jsonl",
       "superoffload eval --model out --data held-out.jsonl --json"},
      &eval_option_table(),
      finish};
  return command;
}

}  // namespace so
