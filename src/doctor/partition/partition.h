// Memory partitions: a share of the last cache, and of memory bandwidth, for the cores that feed GPUs, apart from those
// on which AdamW streams through the optimizer state. Set up in resctrl.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/finding.h"
#include "doctor/partition/resctrl.h"

namespace so {

// The groups' names in resctrl.
inline constexpr std::string_view feeding_group = "superoffload_feed", adamw_group = "superoffload_adamw";

struct PartitionRequest {
  int gpus = 1;                             // whose ranks share the machine as bind_ranks() does
  int feeding_cores = 1;                    // of each rank: its first ones
  std::optional<int> adamw_bandwidth = {};  // percent; unset: all
};

struct PartitionGroup {
  std::string name;
  Cpus cpus;
  std::vector<std::string> schemata;  // lines to be written
};

struct Partition {
  std::string resources;               // what the machine can divide
  std::vector<PartitionGroup> groups;  // for feeding, and for AdamW
  std::vector<std::string> notes;      // for who reads it
  std::vector<std::string> obstacles;  // why it cannot be set up as things are
};

// Throws Error, with the command where there is one, if this machine has no resctrl or it is not mounted, has nothing
// that can be divided, or too few cores. Reads only.
Partition plan_partition(const MachineFiles& files, const PartitionRequest& request);

std::string partition_text(const Partition& partition);  // with the commands that a shell would take
// {"resources", "groups": [{"name", "cpus", "schemata"}], "commands", "notes", "obstacles"}, without a line's end.
std::string partition_json(const Partition& partition);

// Sets it up, after a record of what is made has been written to partition_record. Throws Error with what stands in the
// way: no root rights, an obstacle, or what the kernel refused, in its words; then what had been made is taken back.
void apply_partition(MachineFiles& files, const Partition& partition);
inline constexpr std::string_view partition_record = "/run/superoffload-partition.json";

// Removes the groups of the record, whose CPUs and tasks fall back to the group that all are in at first, and the
// record. Returns a line that says so. Throws Error without a record or without root rights.
std::string undo_partition(MachineFiles& files);

// The finding of superoffload doctor: whether there is such a thing, and whether it is set up.
void find_partition(const MachineFiles& files, Findings& findings);

}  // namespace so
