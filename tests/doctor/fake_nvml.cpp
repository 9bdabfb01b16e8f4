// A library that answers as NVIDIA's libnvidia-ml.so.1 does, by a table that the test fills.
#include "doctor/fake_nvml.h"

#include <cstdio>
#include <cstring>

using so::test::FakeGpu;
using so::test::FakeNvml;
using so::test::not_supported;

namespace {
FakeNvml table;

int put(const void* device, unsigned FakeGpu::*member, unsigned* value) {
  const auto& gpu = *static_cast<const FakeGpu*>(device);
  if (gpu.refuses_all) return not_supported;
  *value = gpu.*member;
  return 0;
}
}  // namespace

struct FakePci {
  char legacy_bus[16];
  unsigned domain, bus, device, id, subsystem;
  char bus_id[32];
};

extern "C" {
FakeNvml* fake_nvml() { return &table; }

int nvmlInit_v2() {
  if (table.init_error == 0) ++table.open;
  return table.init_error;
}
int nvmlShutdown() {
  --table.open;
  return 0;
}
const char* nvmlErrorString(int) { return "Driver/library version mismatch"; }
int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  std::snprintf(text, length, "580.95.05");
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = table.cuda_version;
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = table.count;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &table.gpus[index];
  return 0;
}
int nvmlDeviceGetName(void* device, char* text, unsigned length) {
  std::snprintf(text, length, "%s", static_cast<FakeGpu*>(device)->name);
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, FakePci* pci) {
  std::memset(pci, 0, sizeof *pci);
  std::snprintf(pci->bus_id, sizeof pci->bus_id, "%s", static_cast<FakeGpu*>(device)->bus);
  return 0;
}
struct FakeMemory {
  unsigned long long total, free, used;
};
int nvmlDeviceGetMemoryInfo(void* device, FakeMemory* memory) {
  const auto& gpu = *static_cast<FakeGpu*>(device);
  if (gpu.memory == 0 || gpu.refuses_all) return not_supported;
  *memory = {gpu.memory, gpu.memory, 0};
  return 0;
}
int nvmlDeviceGetCurrPcieLinkGeneration(void* device, unsigned* value) {
  return put(device, &FakeGpu::generation, value);
}
int nvmlDeviceGetMaxPcieLinkGeneration(void* device, unsigned* value) {
  return put(device, &FakeGpu::best_generation, value);
}
int nvmlDeviceGetCurrPcieLinkWidth(void* device, unsigned* value) { return put(device, &FakeGpu::lanes, value); }
int nvmlDeviceGetMaxPcieLinkWidth(void* device, unsigned* value) { return put(device, &FakeGpu::best_lanes, value); }
int nvmlDeviceGetPerformanceState(void* device, unsigned* value) {
  return put(device, &FakeGpu::performance_state, value);
}
int nvmlDeviceGetClockInfo(void* device, int which, unsigned* value) {
  return which == 1 ? put(device, &FakeGpu::clock, value) : 2;  // 1: of the multiprocessors; 2: a wrong argument
}
int nvmlDeviceGetMaxClockInfo(void* device, int which, unsigned* value) {
  return which == 1 ? put(device, &FakeGpu::best_clock, value) : 2;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  const auto& gpu = *static_cast<FakeGpu*>(device);
  *reasons = gpu.clock_reasons;
  return gpu.refuses_all ? not_supported : 0;
}
int nvmlDeviceGetPowerManagementLimit(void* device, unsigned* value) {
  return put(device, &FakeGpu::power_limit, value);
}
int nvmlDeviceGetPowerManagementDefaultLimit(void* device, unsigned* value) {
  return put(device, &FakeGpu::default_power_limit, value);
}
int nvmlDeviceGetC2cModeInfoV(void* device, unsigned* enabled) {
  const auto& gpu = *static_cast<FakeGpu*>(device);
  if (gpu.chip_to_chip < 0 || gpu.refuses_all) return not_supported;
  *enabled = static_cast<unsigned>(gpu.chip_to_chip);
  return 0;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* active) {
  const auto& gpu = *static_cast<FakeGpu*>(device);
  *active = link < gpu.links ? 1 : 0;
  return gpu.refuses_all ? not_supported : 0;
}
int nvmlDeviceGetP2PStatus(void*, void*, int which, int* status) {
  *status = which == 2 && !table.nvlink ? 5 : 0;
  return 0;
}
int nvmlDeviceGetTopologyCommonAncestor(void*, void*, int* level) {
  *level = table.ancestor;
  return 0;
}
}
