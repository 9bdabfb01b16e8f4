// A machine's memory and measured rates as a file, so that a run can be planned where the machine is not.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/machine/rates.h"

namespace so {

// The bytes/s that all GPUs of a host have at once, added up.
struct SharedRates {
  double link_to_host = 0, link_to_device = 0;  // copies one way, by all GPUs
  double link_both = 0;                         // both ways at once, by all GPUs
  double host_adamw = 0, host_adamw_wide = 0;   // by the threads of all processes
  double host_memory = 0;                       // AdamW and the links' copies together
};

// A host with several GPUs: what their processes share.
struct SharedHost {
  int gpus = 2;
  std::size_t host_memory = 0;  // bytes that they may have together
  int host_threads = 1;         // that run AdamW in all of them together
  SharedRates rates;
  std::vector<std::string> measured;  // the keys of the constants that are not from data sheets or assumed
};

// Other values that some of a profile's rates may have, where sources differ: "AdamW at 224 GB/s". Rates are named as
// in files.
struct OtherRates {
  std::string what, source;
  std::vector<std::pair<std::string, double>> rates;
};

// The ways between GPUs, which collectives take. All 0: not known.
struct Interconnect {
  double peer = 0;                // bytes/s that a GPU receives from another of its host
  double network = 0;             // bytes/s that a GPU receives from another host; 0: not known
  double collective_seconds = 0;  // a collective's latency, without the steps of a ring through all GPUs
  double peer_seconds = 0;        // the latency of a step within a host
  double network_seconds = 0;     // and of one from host to host
};

// One GPU and its share of the host.
struct HardwareProfile {
  std::string name;    // of the GPU
  std::string source;  // where the figures come from: measured, and when; or whose data sheet, and what was taken off
  std::size_t device_memory = 0;  // bytes that a process may have
  std::size_t host_memory = 0;    // bytes that it may have beside the rest of the system
  bool one_memory = false;        // GPU and CPU share it: both are all of it, without a plan's margin
  bool fp8 = false;               // the GPU has products in FP8 that --fp8 takes
  int host_threads = 1;           // that run AdamW
  MachineRates rates;             // of a model in bf16
  std::vector<SharedHost> hosts;  // with several GPUs, the fewest first; empty: not known
  Interconnect between_gpus;
  // The keys of the constants that this program measured on such a machine. None: the file does not say.
  std::optional<std::vector<std::string>> measured;
  std::vector<OtherRates> other_rates;
  bool fixed_memory = false;  // the host's is soldered: nobody can buy more
};

// How much of a profile was measured: "planned", nothing; "measured", all rates; "measured in part"; "unknown".
std::string_view measured_status(const HardwareProfile& profile);
// The same as a clause: "planned; nothing was measured on one".
std::string measured_text(const HardwareProfile& profile);

// The profile with the other rates. What several GPUs of a host share changes in proportion.
HardwareProfile with_rates(HardwareProfile profile, const OtherRates& other);

// The rates and the efficiencies by the names that they have in files.
std::span<const std::pair<const char*, double MachineRates::*>> rate_names();
std::span<const std::pair<const char*, double Efficiencies::*>> efficiency_names();
std::span<const std::pair<const char*, double SharedRates::*>> shared_rate_names();
std::span<const std::pair<const char*, double Interconnect::*>> interconnect_names();

// JSON, as `superoffload profile` writes it; a file may have efficiencies and what several GPUs share too, and say of
// each constant where it comes from. Throws Error for a text that is not such a file: `origin` and the key.
HardwareProfile parse_hardware(std::string_view json, const std::string& origin);
std::string to_json(const HardwareProfile& profile);  // of one GPU, without efficiencies: what is measured

// Machines that the program knows (hardware_presets()), sorted by name.
struct KnownHardware {
  std::string_view key;  // "h200"
  HardwareProfile profile;
};
std::span<const KnownHardware> known_hardware();

// A file, or the key of a known machine; what exists in the file system wins. Throws Error, listing the known ones.
HardwareProfile resolve_hardware(const std::string& name_or_path);

}  // namespace so
