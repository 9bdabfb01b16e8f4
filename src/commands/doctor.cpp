// superoffload doctor.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/standard_output.h"
#include "commands/command.h"
#include "commands/program/parse.h"
#include "doctor/examination.h"
#include "doctor/partition/partition.h"

namespace so {
namespace {

struct DoctorOptions : JsonOption, MessageOptions {
  bool partition = false, apply = false, undo = false;
  std::optional<int> gpus;
  int feeding_cores = 1;
  std::optional<int> adamw_bandwidth;  // percent
};

OptionTable<DoctorOptions> doctor_table() {
  using namespace default_from;
  using O = DoctorOptions;
  OptionTable<O> t;
  t.group("Memory partitions");
  t.add("partition", &O::partition, "Print how resctrl would divide this machine's cache and memory bandwidth")
      .default_from(ours);
  t.add("apply", &O::apply, "Set that up; needs root rights, and refuses where groups are in the way")
      .default_from(ours);
  t.add("undo", &O::undo, "Take back what --apply has set up; needs root rights").default_from(ours);
  t.add("gpus", &O::gpus, "GPUs, each with a rank that has its share of the cores")
      .at_least(1)
      .at_most(65536)
      .or_else(std::int64_t{0}, "those on the PCI bus")
      .default_from(ours);
  t.add("feeding_cores", &O::feeding_cores, "Cores of each rank that feed its GPU; the program leaves it one")
      .at_least(1)
      .at_most(65536)
      .default_from(ours);
  t.add("adamw_bandwidth", &O::adamw_bandwidth, "Memory bandwidth that AdamW's cores may take, where MB is in percent")
      .unit("percent")
      .at_least(1)
      .at_most(100)
      .or_else(std::int64_t{0}, "all of it")
      .default_from(ours);
  t.group("Result");
  t.take(json_rows());
  t.group("Messages");
  t.take(message_rows());
  return t;
}

void check(DoctorOptions& options, OptionOrigins& origins, int) {
  if (options.apply && options.undo) fail("--apply and --undo exclude each other: give one of them");
  for (const char* name : {"apply", "undo", "gpus", "feeding_cores", "adamw_bandwidth"})
    if (!options.partition && origins.given(name)) fail("--{} is about memory partitions: add --partition", name);
  for (const char* name : {"gpus", "feeding_cores", "adamw_bandwidth", "json"})
    if (options.undo && origins.given(name))
      fail("--{} has nothing to do with --undo, which goes by the record of --apply: remove it", name);
}

int partition_machine(const DoctorOptions& options, MachineFiles& files) {
  if (options.undo) {
    fmt::print("{}\n", undo_partition(files));
    return exit_ok;
  }
  const int found = static_cast<int>(std::clamp<std::size_t>(pci_gpus(files).size(), 1, 65536));
  const Partition partition =
      plan_partition(files, {options.gpus.value_or(found), options.feeding_cores, options.adamw_bandwidth});
  if (options.json)
    print_json(partition_json(partition));
  else
    print_exactly(partition_text(partition));
  if (!options.apply) return exit_ok;
  apply_partition(files, partition);
  log_info("set up; superoffload doctor --partition --undo takes it back, and so does a restart of the machine");
  return exit_ok;
}

int run(const DoctorOptions& options, const OptionOrigins&) {
  MachineFiles files;
  if (options.partition) return partition_machine(options, files);
  const Findings findings = examine(files, ask_gpu_driver(), software_of_this_machine());
  if (options.json)
    print_json(findings_json(findings));
  else
    print_exactly(findings_text(findings, help_columns()));
  return any_wrong(findings) ? exit_failure : exit_ok;
}

const RegisteredCommand doctor_command([] {
  return make_command<DoctorOptions>(
      {.name = "doctor",
       .position = 10,
       .summary = "look at this machine: what is right, what costs how much, what mends it",
       .details =
           R"(Looks at cores, NUMA nodes, memory, limits, clocks, links, driver, libraries and folders, and says of each
what was found, whether it costs something, and the command that mends it. It reads only. Whatever
there is of a machine is looked at; a machine without a GPU is no fault. The exit code is 0 if nothing is
wrong, also where something costs speed, and 1 if something is wrong. docs/doctor.md lists the checks and
the fields of --json.

With --partition it prints the groups that would divide cache and memory bandwidth between the cores
that feed GPUs and those that run AdamW, through the kernel's resctrl (Intel RDT, Arm MPAM), and with
--apply sets them up.)",
       .examples = {"superoffload doctor", "superoffload doctor --json",
                    "superoffload doctor --partition --adamw_bandwidth 50", "superoffload doctor --partition --apply",
                    "superoffload doctor --partition --undo"}},
      doctor_table(), check, run);
});

}  // namespace
}  // namespace so
