#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_tree.h"
#include "base/log.h"
#include "doctor/partition/partition.h"

namespace so {
namespace {

std::string group_path(std::string_view name) { return fmt::format("{}/{}", resctrl_root, name); }

void require_root(const MachineFiles& files, std::string_view option) {
  if (!files.is_root()) fail("{} changes resctrl, which needs root rights: run it with sudo", option);
}

// The kernel says in info/last_cmd_status why it refused a write, "ok" after one that it took.
void write_to_group(MachineFiles& files, const std::string& group, const char* file, const std::string& value) {
  try {
    files.write(fmt::format("{}/{}", group_path(group), file), value + "\n");
  } catch (const Error& error) {
    const std::string status = files.text(fmt::format("{}/info/last_cmd_status", resctrl_root)).value_or("");
    fail("the kernel refuses {} for {} of {}: {}; nothing is set up", value, file, group,
         status.empty() || status == "ok" ? error.what() : printable(status));
  }
}

// Removes as much as it can; the log names the rest.
void remove_groups(MachineFiles& files, const std::vector<std::string>& groups) {
  for (const std::string& group : groups) try {
      files.remove_directory(group_path(group));
    } catch (const Error& error) {
      log_error("{}", error.what());
    }
}

std::string record_of(const Partition& partition, const std::string& cpus) {
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  for (const PartitionGroup& group : partition.groups) groups.push_back(group.name);
  return nlohmann::ordered_json{{"version", 1}, {"groups", groups}, {"cpus_before", cpus}}.dump() + "\n";
}

// The groups in the record. It names no others than this program makes, so that none can be removed by it.
std::vector<std::string> recorded_groups(const std::string& text) {
  std::vector<std::string> groups;
  const auto record = json_tree(text);
  const bool good = record.is_object() && record.contains("groups") && record["groups"].is_array();
  for (const auto& name : good ? record["groups"] : nlohmann::json::array())
    if (name == feeding_group || name == adamw_group) groups.push_back(name.get<std::string>());
  if (!good || groups.size() != record["groups"].size())
    fail("{} is no record of this program: remove it, and the groups with rmdir {}/NAME", partition_record,
         resctrl_root);
  return groups;
}

}  // namespace

void apply_partition(MachineFiles& files, const Partition& partition) {
  require_root(files, "--apply");
  if (!partition.obstacles.empty()) fail("{}", partition.obstacles.front());
  if (files.exists(partition_record))
    fail("{} records a set-up: superoffload doctor --partition --undo takes it back first", partition_record);
  files.write(partition_record, record_of(partition, files.text(group_path("cpus_list")).value_or("")));
  std::vector<std::string> made;
  try {
    for (const PartitionGroup& group : partition.groups) {
      files.make_directory(group_path(group.name));
      made.push_back(group.name);
      for (const std::string& line : group.schemata) write_to_group(files, group.name, "schemata", line);
      write_to_group(files, group.name, "cpus_list", list_of(group.cpus));
    }
  } catch (...) {
    remove_groups(files, made);
    files.remove_file(partition_record);
    throw;
  }
}

std::string undo_partition(MachineFiles& files) {
  require_root(files, "--undo");
  const auto record = files.text(partition_record);
  if (!record)
    fail("there is nothing to take back: --apply has left no {} since the machine was started", partition_record);
  std::vector<std::string> removed;
  for (const std::string& group : recorded_groups(*record)) {
    if (!files.exists(group_path(group))) continue;
    files.remove_directory(group_path(group));
    removed.push_back(group);
  }
  files.remove_file(partition_record);
  if (removed.empty()) return "the groups were gone already; the record is removed";
  return fmt::format("removed {}; their CPUs and tasks are in the default group again", fmt::join(removed, " and "));
}

}  // namespace so
