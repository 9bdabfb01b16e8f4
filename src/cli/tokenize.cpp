#include "cli/parse.h"

namespace so {
namespace {

ParsedCommand finish(const std::vector<std::pair<std::string, std::string>>& values, int) {
  TokenizeOptions options;
  OptionOrigins origins;
  assign_values(tokenize_option_table().ref(options), origins, values);
  check_options(options, origins);
  return {std::move(options), std::move(origins)};
}

}  // namespace

const Command& tokenize_command() {
  static const Command command{
      "tokenize",
      "text to token ids and back",
      "Encodes text with a model's tokenizer and prints the ids, or decodes ids and prints the text.",
      {"superoffload tokenize --model Qwen3-0.6B --text \"Hello world\"",
       "superoffload tokenize --model Qwen3-0.6B --decode 9707,1879"},
      &tokenize_option_table(),
      finish};
  return command;
}

}  // namespace so
