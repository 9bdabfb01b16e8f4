// The rates of a machine that a plan is made from.
#pragma once

#include <cstdint>
#include <string>

namespace so {

// The rates that were measured, in FLOP/s and bytes/s where nothing else is said.
struct MachineRates {
  double gemm_flops = 0;       // a large matrix product in the compute dtype
  double device_memory = 0;    // of the device's memory, read and written both counted
  double link_to_host = 0;     // from device memory to pinned host memory
  double link_to_device = 0;   // and back
  double host_adamw = 0;       // what AdamW on the host's threads moves: state, gradient and weight, from and to memory
  double host_adamw_wide = 0;  // with gradient and weight in fp32, not bf16
  double host_memory = 0;      // what AdamW and the link's copies both ways move together, all at once
  double kernel_seconds = 0;   // of the device, that a kernel takes however little it does
};

std::string describe_rates(const MachineRates& rates);  // for the log

// Whether a run takes the rates that were measured earlier, or measures them now.
enum class ProfileUse : std::uint8_t { cached, fresh };

}  // namespace so
