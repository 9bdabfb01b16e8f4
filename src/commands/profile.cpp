// superoffload profile.
#include <fmt/format.h>

#include <ctime>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "commands/commands.h"
#include "commands/parse.h"
#include "io/output_file.h"
#include "ops/runtime.h"
#include "plan/machine/hardware.h"
#include "plan/machine/planning_machine.h"
#include "plan/machine/rate_cache.h"

namespace so {

int run_profile(const ProfileOptions& options) {
  namespace fs = std::filesystem;
  if (fs::exists(options.output) && !options.overwrite)
    fail("{} is there already; choose another --output, or replace it with --overwrite", options.output);
  require_output_file(
      options.output, "--output", [](std::string_view) { return false; }, options.overwrite);
  Runtime runtime(DeviceChoice::cuda, options.cpu_threads);
  const PlanningMachine machine = planning_machine(runtime, DType::bf16, DType::f32);
  log_info("measuring {}", machine.name);
  const MachineRates rates = machine.rates();
  const std::time_t now = std::time(nullptr);
  const HardwareProfile profile = profile_of(machine, rates, now);
  // For `train`, which would measure the same.
  if (const auto cache = RateCache::of_user()) cache->store(rate_key(runtime, DType::bf16, DType::f32), profile, now);
  write_text_file_atomically(options.output, to_json(profile));
  fmt::print("{}: {}\nwrote {}\n", profile.name, describe_rates(profile.rates), options.output);
  return exit_ok;
}

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
