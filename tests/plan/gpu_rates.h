// Rates of a GPU and its host, round numbers near those of an H200, that the tests of placement share.
#pragma once

#include "plan/placement/step_estimate.h"

namespace so::test {

inline MachineRates gpu_rates() {
  return {.gemm_flops = 6e14,
          .device_memory = 4e12,
          .link_to_host = 5e10,
          .link_to_device = 5e10,
          .host_adamw = 1.5e11,
          .host_adamw_wide = 1.5e11,
          .host_memory = 1.5e11};
}

}  // namespace so::test
