// A machine's memory and measured rates as a file, so that a run can be planned where the machine is not.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "plan/machine/rates.h"

namespace so {

// One GPU and its share of the host.
struct HardwareProfile {
  std::string name;    // of the GPU
  std::string source;  // where the figures come from: measured, and when; or whose data sheet, and what was taken off
  std::size_t device_memory = 0;  // bytes that a process may have
  std::size_t host_memory = 0;    // bytes that it may have beside the rest of the system
  int host_threads = 1;           // that run AdamW
  MachineRates rates;             // of a model in bf16
};

// The rates and the efficiencies by the names that they have in files.
std::span<const std::pair<const char*, double MachineRates::*>> rate_names();
std::span<const std::pair<const char*, double Efficiencies::*>> efficiency_names();

// JSON, as `superoffload profile` writes it; a file may have efficiencies too, and say of each constant where it comes
// from. Throws Error for a text that is not such a file: `origin` and the key.
HardwareProfile parse_hardware(std::string_view json, const std::string& origin);
std::string to_json(const HardwareProfile& profile);  // without efficiencies, which nothing measures

// Machines that the program knows (hardware_presets()), sorted by name.
struct KnownHardware {
  std::string_view key;  // "h200"
  HardwareProfile profile;
};
std::span<const KnownHardware> known_hardware();

// A file, or the key of a known machine; what exists in the file system wins. Throws Error, listing the known ones.
HardwareProfile resolve_hardware(const std::string& name_or_path);

}  // namespace so
