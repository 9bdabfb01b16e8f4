// Rates of a GPU and its host, round numbers near those of an H200, that the tests of placement share.
#pragma once

#include "plan/placement/step_estimate.h"

namespace so::test {

// `host`: bytes/s of its memory, which AdamW alone can use.
inline MachineRates gpu_rates(double host = 1.5e11) {
  return {.gemm_flops = 6e14,
          .device_memory = 4e12,
          .link_to_host = 5e10,
          .link_to_device = 5e10,
          .host_adamw = host,
          .host_adamw_wide = host,
          .host_memory = host};
}

}  // namespace so::test
