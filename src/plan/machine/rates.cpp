#include "plan/machine/rates.h"

#include <fmt/format.h>

namespace so {

std::string describe_rates(const MachineRates& r) {
  const std::string tuning =
      r.adamw == AdamWTuning()
          ? std::string()
          : fmt::format(", AdamW in tiles of {} elements that fetches {} ahead", r.adamw.tile, r.adamw.prefetch);
  return fmt::format(
      "matrix products {:.4g} TFLOP/s, GPU memory {:.4g} GB/s, GPU to host {:.4g} GB/s, host to GPU {:.4g} GB/s, AdamW "
      "on the host {:.4g} GB/s, host memory under AdamW and transfers {:.4g} GB/s, {:.2g} us per kernel launch{}",
      r.gemm_flops / 1e12, r.device_memory / 1e9, r.link_to_host / 1e9, r.link_to_device / 1e9, r.host_adamw / 1e9,
      r.host_memory / 1e9, r.kernel_seconds * 1e6, tuning);
}

}  // namespace so
