#include "cli/parse.h"

namespace so {
namespace {

ParsedCommand finish(const std::vector<std::pair<std::string, std::string>>& values, int) {
  InitOptions options;
  OptionOrigins origins;
  assign_values(init_option_table().ref(options), origins, values);
  check_options(options, origins);
  return {std::move(options), std::move(origins)};
}

}  // namespace

const Command& init_command() {
  static const Command command{
      "init",
      "make a randomly initialised model directory from a config",
      "Writes a Hugging Face model directory with random weights: the start of training from nothing, or a small "
      "model\n"
      "for trying things out.",
      {"superoffload init --config config.json --tokenizer Qwen3-0.6B --output_dir tiny --seed 1"},
      &init_option_table(),
      finish};
  return command;
}

}  // namespace so
