// NVIDIA's driver is asked about its GPUs through NVML. The library comes with the driver and is loaded here at run
// time, so a build without CUDA asks it too, and a machine without it is an answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace so {

// Why clocks are below the greatest, as NVML's bits (NVML_CLOCKS_EVENT_REASON_*).
namespace clock_reason {
constexpr std::uint64_t idle = 0x1, application_setting = 0x2, power_cap = 0x4, hardware_slowdown = 0x8,
                        software_thermal = 0x20, hardware_thermal = 0x40, power_brake = 0x80;
}

// Each value is absent where the driver does not give it.
struct DriverGpu {
  std::string bus = {};  // as in sysfs
  std::string name = {};
  std::optional<std::uint64_t> memory = {};  // bytes of its own
  std::optional<unsigned> pcie_generation = {},
                          best_pcie_generation = {};  // the best that GPU and slot can do together
  std::optional<unsigned> pcie_lanes = {}, best_pcie_lanes = {};
  std::optional<unsigned> performance_state = {};                      // 0: the highest clocks; 8 and above: idle
  std::optional<unsigned> clock = {}, best_clock = {};                 // of the multiprocessors, MHz
  std::optional<std::uint64_t> clock_reasons = {};                     // bits of clock_reason
  std::optional<unsigned> power_limit = {}, default_power_limit = {};  // mW
  std::optional<bool> chip_to_chip = {};                               // NVLink-C2C to the host's processor is in use
  unsigned nvlinks = 0;                                                // that are up
};

struct GpuPair {
  std::size_t first = 0, second = 0;  // of GpuDriver::gpus
  std::optional<bool> nvlink = {};    // peer access over NVLink works
  std::optional<bool> peer_access = {};
  std::optional<unsigned> common_ancestor = {};  // NVML's level: 10 one PCIe switch ... 40 one NUMA node, 50 none
};

struct GpuDriver {
  std::string reason = {};  // why the library gives no answers; empty: it does
  std::string version = {};
  int cuda_version = 0;  // the newest that the driver runs: 13000; 0: not known
  std::vector<DriverGpu> gpus = {};
  std::vector<GpuPair> pairs = {};
};

// `library` is a name or a path for dlopen().
GpuDriver ask_gpu_driver(const std::string& library = "libnvidia-ml.so.1");

}  // namespace so
