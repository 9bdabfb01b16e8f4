// The GPUs that stand on the PCI bus, as sysfs describes them: they are there whether or not there is a driver.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/machine_files.h"
#include "ranks/binding.h"

namespace so {

struct LinkState {
  double speed = 0;  // GT/s of a lane
  int lanes = 0;
  // Bytes a second each way, less the line code: 8b/10b up to 5 GT/s, 128b/130b up to 32. Later generations have no
  // line code, and lose about as little.
  double bytes() const { return speed * 1e9 / 8 * (speed > 5 ? 128.0 / 130.0 : 0.8) * lanes; }
};

struct PciGpu {
  std::string bus;  // "0000:4e:00.0"
  Cpus near = {};   // CPUs that the kernel calls local to it; empty: not known
  std::optional<LinkState> link = {}, best_link = {};
};

// NVIDIA's, by bus.
std::vector<PciGpu> pci_gpus(const MachineFiles& files);

// "00000000:4E:00.0", as NVIDIA's driver writes it, in the kernel's form.
std::string kernel_bus(std::string bus);

}  // namespace so
