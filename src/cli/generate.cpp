#include "cli/parse.h"

namespace so {
namespace {

ParsedCommand finish(const std::vector<std::pair<std::string, std::string>>& values, int) {
  GenerateOptions options;
  OptionOrigins origins;
  assign_values(generate_option_table().ref(options), origins, values);
  check_options(options, origins);
  return {std::move(options), std::move(origins)};
}

}  // namespace

const Command& generate_command() {
  static const Command command{
      "generate",
      "continue a prompt",
      "Continues a prompt and prints the new text. Greedy unless a temperature is given.",
      {"superoffload generate --model out --prompt \"Give three tips for staying healthy.\" --alpaca",
       "superoffload generate --model out --prompt_file prompt.txt --temperature 0.7 --top_p 0.9 --seed 1"},
      &generate_option_table(),
      finish};
  return command;
}

}  // namespace so
