#include "doctor/pci_gpu.h"

#include <algorithm>
#include <cctype>

#include "base/proc_text.h"

namespace so {
namespace {

std::optional<LinkState> link_of(const MachineFiles& files, const std::string& device, const std::string& which) {
  const auto speed = files.text(device + which + "_link_speed");
  const auto lanes = files.number(device + which + "_link_width");
  const auto rate = speed ? parse_link_speed(*speed) : std::nullopt;
  if (!rate || !lanes || *lanes == 0 || *lanes > 32) return std::nullopt;  // 255: the kernel does not know
  return LinkState{*rate, static_cast<int>(*lanes)};
}

}  // namespace

std::vector<PciGpu> pci_gpus(const MachineFiles& files) {
  std::vector<PciGpu> gpus;
  for (const std::string& bus : files.list("/sys/bus/pci/devices")) {
    const std::string device = "/sys/bus/pci/devices/" + bus + "/";
    // Class 03: display controllers, among them those without a display.
    if (files.text(device + "vendor").value_or("") != "0x10de") continue;
    if (!files.text(device + "class").value_or("").starts_with("0x03")) continue;
    PciGpu gpu{.bus = bus};
    if (const auto near = files.text(device + "local_cpulist")) gpu.near = parse_cpu_list(*near).value_or(Cpus{});
    gpu.link = link_of(files, device, "current");
    gpu.best_link = link_of(files, device, "max");
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

std::string kernel_bus(std::string bus) {
  if (bus.size() == 16 && bus.starts_with("0000")) bus.erase(0, 4);
  std::transform(bus.begin(), bus.end(), bus.begin(), [](unsigned char c) { return std::tolower(c); });
  return bus;
}

}  // namespace so
