#include "cli/parse.h"

namespace so {
namespace {

ParsedCommand finish(const std::vector<std::pair<std::string, std::string>>& values, int) {
  VerifyOptions options;
  OptionOrigins origins;
  assign_values(verify_option_table().ref(options), origins, values);
  check_options(options, origins);
  return {std::move(options), std::move(origins)};
}

}  // namespace

const Command& verify_command() {
  static const Command command{
      "verify",
      "check a model or checkpoints against their checksums",
      "Reads every file of a model directory, of a checkpoint, or of an output directory with all its checkpoints, and\n"
      "compares it with checksums.json, which train and init write beside what they write. Headers, the index and the\n"
      "step that a checkpoint's files are of are checked too; of a model without checksums these alone. One line for "
      "each\n"
      "directory, and one for each damaged file. The exit code is 0 if all is whole, 1 if anything is damaged, 2 if "
      "there is\n"
      "nothing to verify.",
      {"superoffload verify out", "superoffload verify out/checkpoint-500 --json"},
      &verify_option_table(),
      finish,
      "dir"};
  return command;
}

}  // namespace so
