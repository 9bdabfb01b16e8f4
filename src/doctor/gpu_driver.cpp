#include "doctor/gpu_driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <memory>

#include "base/file.h"
#include "doctor/pci_gpu.h"

namespace so {
namespace {

// NVML's C interface, as far as it is used, written out here so that no toolkit is needed. It is stable: functions of
// another form get another name. Every function returns 0 for success.
using NvmlDevice = struct NvmlDeviceHandle*;
struct NvmlPci {
  char legacy_bus[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlC2c {
  unsigned enabled;
};
constexpr int sm_clock = 1, longest_text = 96, most_links = 18;
constexpr int peer_read = 0, peer_nvlink = 2;

struct Nvml {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*cuda_version)(int*) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, NvmlDevice*) = nullptr;
  int (*name)(NvmlDevice, char*, unsigned) = nullptr;
  int (*pci)(NvmlDevice, NvmlPci*) = nullptr;
  // Unknown where the driver lacks these functions.
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*generation)(NvmlDevice, unsigned*) = nullptr;
  int (*best_generation)(NvmlDevice, unsigned*) = nullptr;
  int (*lanes)(NvmlDevice, unsigned*) = nullptr;
  int (*best_lanes)(NvmlDevice, unsigned*) = nullptr;
  int (*performance_state)(NvmlDevice, unsigned*) = nullptr;
  int (*clock)(NvmlDevice, int, unsigned*) = nullptr;
  int (*best_clock)(NvmlDevice, int, unsigned*) = nullptr;
  int (*clock_reasons)(NvmlDevice, unsigned long long*) = nullptr;
  int (*power_limit)(NvmlDevice, unsigned*) = nullptr;
  int (*default_power_limit)(NvmlDevice, unsigned*) = nullptr;
  int (*chip_to_chip)(NvmlDevice, NvmlC2c*) = nullptr;
  int (*nvlink_state)(NvmlDevice, unsigned, unsigned*) = nullptr;
  int (*peer_status)(NvmlDevice, NvmlDevice, int, int*) = nullptr;
  int (*ancestor)(NvmlDevice, NvmlDevice, int*) = nullptr;
};

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};

template <class Function>
bool find_symbol(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// The name of a function that must be there and is not; empty: all are.
std::string find_functions(void* library, Nvml& nvml) {
  std::string missing;
  const auto need = [&](auto& function, const char* name) {
    if (!find_symbol(library, function, name) && missing.empty()) missing = name;
  };
  need(nvml.init, "nvmlInit_v2");
  need(nvml.shutdown, "nvmlShutdown");
  need(nvml.error_string, "nvmlErrorString");
  need(nvml.driver_version, "nvmlSystemGetDriverVersion");
  need(nvml.cuda_version, "nvmlSystemGetCudaDriverVersion_v2");
  need(nvml.count, "nvmlDeviceGetCount_v2");
  need(nvml.handle, "nvmlDeviceGetHandleByIndex_v2");
  need(nvml.name, "nvmlDeviceGetName");
  need(nvml.pci, "nvmlDeviceGetPciInfo_v3");
  find_symbol(library, nvml.memory, "nvmlDeviceGetMemoryInfo");
  find_symbol(library, nvml.generation, "nvmlDeviceGetCurrPcieLinkGeneration");
  find_symbol(library, nvml.best_generation, "nvmlDeviceGetMaxPcieLinkGeneration");
  find_symbol(library, nvml.lanes, "nvmlDeviceGetCurrPcieLinkWidth");
  find_symbol(library, nvml.best_lanes, "nvmlDeviceGetMaxPcieLinkWidth");
  find_symbol(library, nvml.performance_state, "nvmlDeviceGetPerformanceState");
  find_symbol(library, nvml.clock, "nvmlDeviceGetClockInfo");
  find_symbol(library, nvml.best_clock, "nvmlDeviceGetMaxClockInfo");
  if (!find_symbol(library, nvml.clock_reasons, "nvmlDeviceGetCurrentClocksEventReasons"))
    find_symbol(library, nvml.clock_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");  // its name until driver 535
  find_symbol(library, nvml.power_limit, "nvmlDeviceGetPowerManagementLimit");
  find_symbol(library, nvml.default_power_limit, "nvmlDeviceGetPowerManagementDefaultLimit");
  find_symbol(library, nvml.chip_to_chip, "nvmlDeviceGetC2cModeInfoV");
  find_symbol(library, nvml.nvlink_state, "nvmlDeviceGetNvLinkState");
  find_symbol(library, nvml.peer_status, "nvmlDeviceGetP2PStatus");
  find_symbol(library, nvml.ancestor, "nvmlDeviceGetTopologyCommonAncestor");
  return missing;
}

// Calls function(device, arguments..., &value); nothing where the driver lacks it or gives no answer.
template <class Value, class Function, class... Args>
std::optional<Value> value_of(Function function, NvmlDevice device, Args... arguments) {
  Value value{};
  if (function == nullptr || function(device, arguments..., &value) != 0) return std::nullopt;
  return value;
}

DriverGpu describe_gpu(const Nvml& nvml, NvmlDevice device) {
  DriverGpu gpu;
  std::array<char, longest_text> name{};
  if (nvml.name(device, name.data(), longest_text) == 0) gpu.name = printable(name.data());
  NvmlPci pci{};
  if (nvml.pci(device, &pci) == 0) gpu.bus = kernel_bus(std::string(pci.bus_id, strnlen(pci.bus_id, 32)));
  // Not where the GPU shares the CPU's.
  if (const auto memory = value_of<NvmlMemory>(nvml.memory, device)) gpu.memory = memory->total;
  gpu.pcie_generation = value_of<unsigned>(nvml.generation, device);
  gpu.best_pcie_generation = value_of<unsigned>(nvml.best_generation, device);
  gpu.pcie_lanes = value_of<unsigned>(nvml.lanes, device);
  gpu.best_pcie_lanes = value_of<unsigned>(nvml.best_lanes, device);
  gpu.performance_state = value_of<unsigned>(nvml.performance_state, device);
  gpu.clock = value_of<unsigned>(nvml.clock, device, sm_clock);
  gpu.best_clock = value_of<unsigned>(nvml.best_clock, device, sm_clock);
  gpu.clock_reasons = value_of<unsigned long long>(nvml.clock_reasons, device);
  gpu.power_limit = value_of<unsigned>(nvml.power_limit, device);
  gpu.default_power_limit = value_of<unsigned>(nvml.default_power_limit, device);
  if (const auto c2c = value_of<NvmlC2c>(nvml.chip_to_chip, device)) gpu.chip_to_chip = c2c->enabled != 0;
  for (unsigned link = 0; link < most_links; ++link)
    if (value_of<unsigned>(nvml.nvlink_state, device, link) == 1u) ++gpu.nvlinks;
  return gpu;
}

GpuPair describe_pair(const Nvml& nvml, const std::vector<NvmlDevice>& devices, std::size_t first, std::size_t second) {
  GpuPair pair{first, second};
  const auto status = [&](int which) -> std::optional<bool> {
    int value = 0;
    if (nvml.peer_status == nullptr || nvml.peer_status(devices[first], devices[second], which, &value) != 0)
      return std::nullopt;
    return value == 0;
  };
  pair.peer_access = status(peer_read);
  pair.nvlink = status(peer_nvlink);
  int level = 0;
  if (nvml.ancestor != nullptr && nvml.ancestor(devices[first], devices[second], &level) == 0)
    pair.common_ancestor = static_cast<unsigned>(level);
  return pair;
}

}  // namespace

GpuDriver ask_gpu_driver(const std::string& library) {
  GpuDriver driver;
  const std::unique_ptr<void, CloseLibrary> loaded(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (!loaded) {
    const char* reason = dlerror();
    driver.reason = reason != nullptr ? reason : "cannot load " + library;
    return driver;
  }
  Nvml nvml;
  if (const std::string missing = find_functions(loaded.get(), nvml); !missing.empty()) {
    driver.reason = fmt::format("{} has no {}", library, missing);
    return driver;
  }
  if (const int error = nvml.init(); error != 0) {
    driver.reason = fmt::format("NVML: {}", printable(nvml.error_string(error)));
    return driver;
  }
  std::array<char, longest_text> version{};
  if (nvml.driver_version(version.data(), longest_text) == 0) driver.version = printable(version.data());
  if (nvml.cuda_version(&driver.cuda_version) != 0) driver.cuda_version = 0;
  unsigned count = 0;
  if (nvml.count(&count) != 0) count = 0;
  std::vector<NvmlDevice> devices;
  for (unsigned i = 0; i < count; ++i) {
    NvmlDevice device = nullptr;
    if (nvml.handle(i, &device) != 0) continue;  // one that this process may not use
    devices.push_back(device);
    driver.gpus.push_back(describe_gpu(nvml, device));
  }
  for (std::size_t i = 0; i < devices.size(); ++i)
    for (std::size_t j = i + 1; j < devices.size(); ++j) driver.pairs.push_back(describe_pair(nvml, devices, i, j));
  nvml.shutdown();
  return driver;
}

}  // namespace so
