// superoffload profile.
#include <fmt/format.h>

#include <ctime>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/result_line.h"
#include "commands/command.h"
#include "io/output_file.h"
#include "ops/runtime.h"
#include "plan/machine/hardware.h"
#include "plan/machine/planning_machine.h"
#include "plan/machine/rate_cache.h"

namespace so {
namespace {

struct ProfileOptions : ThreadOption, MessageOptions {
  std::string output = "hardware.json";
  bool overwrite = false;
};

OptionTable<ProfileOptions> profile_table() {
  using namespace default_from;
  using O = ProfileOptions;
  OptionTable<O> t;
  t.group("Result");
  t.add("output", &O::output, "Hardware file to write").metavar("FILE").default_from(ours);
  t.add("overwrite", &O::overwrite, "Replace a file that is there").default_from(ours);
  t.group("Machine");
  t.take(thread_rows());
  t.group("Messages");
  t.take(message_rows());
  return t;
}

int run(const ProfileOptions& options, const OptionOrigins&) {
  namespace fs = std::filesystem;
  if (fs::exists(options.output) && !options.overwrite)
    fail("{} is there already; choose another --output, or replace it with --overwrite", options.output);
  require_output_file(
      options.output, "--output", [](std::string_view) { return false; }, options.overwrite);
  Runtime runtime(DeviceChoice::cuda, options.cpu_threads.value_or(0));
  const NumberFormats formats = model_formats(DType::bf16);
  const PlanningMachine machine = planning_machine(runtime, formats);
  log_info("measuring {}", machine.name);
  const MachineRates rates = machine.rates();
  const std::time_t now = std::time(nullptr);
  HardwareProfile profile = profile_of(machine, rates, now);
  profile.fp8 = runtime.ops().multiplies_fp8();
  // For `train`, which would measure the same.
  if (const auto cache = RateCache::of_user()) cache->store(rate_key(runtime, formats), profile, now);
  write_text_file_atomically(options.output, to_json(profile));
  print_text("{}: {}\nwrote {}\n", profile.name, describe_rates(profile.rates), options.output);
  return exit_ok;
}

const RegisteredCommand profile_command([] {
  return make_command<ProfileOptions>(
      {.name = "profile",
       .position = 9,
       .summary = "measure this machine into a hardware file for plan",
       .details = "Measures the GPU, the link and AdamW on the host, in a few seconds, and writes what "
                  "superoffload plan --hardware takes.",
       .examples = {"superoffload profile --output mine.json"}},
      profile_table(), nullptr, run);
});

}  // namespace
}  // namespace so
