#include "cli/parse.h"

namespace so {
namespace {

ParsedCommand finish(const std::vector<std::pair<std::string, std::string>>& values, int) {
  ProfileOptions options;
  OptionOrigins origins;
  assign_values(profile_option_table().ref(options), origins, values);
  check_options(options, origins);
  return {std::move(options), std::move(origins)};
}

}  // namespace

const Command& profile_command() {
  static const Command command{"profile",
                               "measure this machine into a hardware file for plan",
                               "Measures the GPU, the link and AdamW on the host, in a few seconds, and writes what "
                               "superoffload plan --hardware takes.",
                               {"superoffload profile --output mine.json"},
                               &profile_option_table(),
                               finish};
  return command;
}

}  // namespace so
