// The answers of the library made of fake_nvml.cpp. A test loads the library, and sets what fake_nvml() returns.
#pragma once

namespace so::test {

constexpr int most_fake_gpus = 4, not_supported = 3;

struct FakeGpu {
  const char* bus = "00000000:4E:00.0";
  const char* name = "NVIDIA H200";
  unsigned generation = 5, best_generation = 5, lanes = 16, best_lanes = 16, performance_state = 0;
  unsigned clock = 1980, best_clock = 1980, power_limit = 700000, default_power_limit = 700000, links = 18;
  unsigned long long clock_reasons = 0;
  unsigned long long memory = 150'754'820'096;  // 0: not supported
  int chip_to_chip = 0;                         // -1: not supported
  bool refuses_all = false;
};

struct FakeNvml {
  int init_error = 0;
  int open = 0;  // inits less shutdowns
  unsigned count = 1;
  int cuda_version = 13000;
  bool nvlink = true;
  int ancestor = 50;
  FakeGpu gpus[most_fake_gpus] = {};
};

}  // namespace so::test
