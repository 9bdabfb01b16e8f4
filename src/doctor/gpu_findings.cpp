#include "doctor/gpu_findings.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/proc_text.h"
#include "base/quantities.h"
#include "plan/machine/hardware.h"

namespace so {
namespace {

// The lane rates of PCIe generations 1 to 6.
constexpr std::array<double, 6> lane_rates{2.5, 5, 8, 16, 32, 64};

std::optional<LinkState> link_of(std::optional<unsigned> generation, std::optional<unsigned> lanes) {
  if (!generation || !lanes || *generation == 0 || *generation > lane_rates.size() || *lanes == 0 || *lanes > 32)
    return std::nullopt;
  return LinkState{lane_rates[*generation - 1], static_cast<int>(*lanes)};
}

std::string link_text(const LinkState& link) {
  const auto generation = std::find(lane_rates.begin(), lane_rates.end(), link.speed);
  return fmt::format("{} x{} ({:.1f} GB/s each way)",
                     generation != lane_rates.end() ? fmt::format("generation {}", generation - lane_rates.begin() + 1)
                                                    : fmt::format("{} GT/s", link.speed),
                     link.lanes, link.bytes() / 1e9);
}

// Says how fast a known machine with such a GPU was measured to copy; empty: none is known.
std::string measured_link(const std::string& gpu) {
  for (const KnownHardware& known : known_hardware())
    if (measured_status(known.profile) == "measured" && gpu.starts_with(known.profile.name))
      return fmt::format("; {:.1f} GB/s to the host on a good one (configs/hardware/{}.json)",
                         known.profile.rates.link_to_host / 1e9, known.key);
  return {};
}

// One GPU's link, from the driver where it answers, else from sysfs.
struct Link {
  std::string name;
  std::optional<LinkState> now, best;
  bool busy = false;  // its state says that it is not saving power
  bool chip_to_chip = false;
};

std::vector<Link> links_of(const GpuDriver& driver, const std::vector<PciGpu>& gpus) {
  std::vector<Link> links;
  for (const DriverGpu& gpu : driver.gpus) {
    Link link{gpu.name, link_of(gpu.pcie_generation, gpu.pcie_lanes),
              link_of(gpu.best_pcie_generation, gpu.best_pcie_lanes)};
    link.busy = gpu.performance_state && *gpu.performance_state < 8;
    link.chip_to_chip = gpu.chip_to_chip.value_or(false);
    links.push_back(std::move(link));
  }
  if (driver.gpus.empty())
    for (const PciGpu& gpu : gpus) links.push_back({gpu.bus, gpu.link, gpu.best_link});
  return links;
}

// Lists why a GPU is held back, and the commands that mend it, "-" where there is none.
struct HeldBack {
  std::uint64_t bit;
  const char* reason;
  const char* mend;
};
constexpr HeldBack held_back[] = {
    {clock_reason::hardware_thermal, "it is too hot", "see to its cooling"},
    {clock_reason::software_thermal, "it is too hot", "see to its cooling"},
    {clock_reason::power_brake, "the power supply brakes it", "see to its power supply"},
    {clock_reason::hardware_slowdown, "the hardware slows it down", "see to its cooling and its power supply"},
};

Finding clocks_of(const DriverGpu& gpu, std::size_t index) {
  Finding f{.check = "gpu_clocks", .subject = fmt::format("clocks of GPU {}", index)};
  if (!gpu.clock || !gpu.best_clock || *gpu.best_clock == 0 || !gpu.clock_reasons) {
    f.found = "the driver does not say";
    f.verdict = FindingVerdict::unknown;
    return f;
  }
  f.found = fmt::format("{} of {} MHz", *gpu.clock, *gpu.best_clock);
  const std::uint64_t reasons = *gpu.clock_reasons;
  const double share = 100.0 * *gpu.clock / *gpu.best_clock;
  const std::string cost = fmt::format("matrix products are at most {:.0f}% as fast", share);
  for (const HeldBack& held : held_back) {
    if ((reasons & held.bit) == 0) continue;
    f.found += fmt::format(": {}", held.reason);
    f.verdict = FindingVerdict::wrong;
    f.cost = cost;
    f.mend = held.mend;
    return f;
  }
  if ((reasons & clock_reason::application_setting) != 0) {
    f.found += ": somebody has set its clocks";
    f.verdict = FindingVerdict::costs;
    f.cost = cost;
    f.mend = fmt::format("nvidia-smi -i {0} -rac; nvidia-smi -i {0} -rgc", index);
  } else if (gpu.power_limit && gpu.default_power_limit && *gpu.power_limit < *gpu.default_power_limit) {
    f.found += fmt::format(", power limited to {} of {} W", *gpu.power_limit / 1000, *gpu.default_power_limit / 1000);
    f.verdict = FindingVerdict::costs;
    f.cost =
        (reasons & clock_reason::power_cap) != 0 ? cost + " at this limit" : "under load its clocks fall to keep to it";
    f.mend = fmt::format("nvidia-smi -i {} -pl {}", index, *gpu.default_power_limit / 1000);
  } else if ((reasons & clock_reason::idle) != 0) {
    f.found += ", idle: look again while it works";
  } else if ((reasons & clock_reason::power_cap) != 0) {
    f.found += ", kept by its own power limit, as under full load";
  }
  return f;
}

std::string pair_text(const GpuPair& pair) {
  if (pair.nvlink == true) return "NVLink";
  if (!pair.common_ancestor) return "PCIe";
  if (*pair.common_ancestor <= 20) return "PCIe switches";
  return *pair.common_ancestor <= 40 ? "PCIe of one NUMA node" : "PCIe of two sockets";
}

}  // namespace

void find_driver(const GpuDriver& driver, const std::vector<PciGpu>& gpus, const Software& software,
                 Findings& findings) {
  Finding f{.check = "gpu", .subject = "GPUs"};
  if (driver.gpus.empty() && gpus.empty()) {
    f.found = "none of NVIDIA's is on this machine; what depends on one was not looked at";
    f.verdict = FindingVerdict::unknown;
    findings.push_back(std::move(f));
    return;
  }
  if (driver.gpus.empty()) {
    f.found = fmt::format("{} of NVIDIA's on the PCI bus, and no driver that answers ({})", gpus.size(),
                          driver.reason.empty() ? "it shows this process no GPU" : driver.reason);
    f.verdict = FindingVerdict::wrong;
    f.cost = "no GPU can be used";
    f.mend = "install NVIDIA's driver (Debian: apt-get install nvidia-driver); in a container: docker run --gpus all";
    findings.push_back(std::move(f));
    return;
  }
  f.found = fmt::format("{} x {}, driver {}", driver.gpus.size(), driver.gpus.front().name,
                        driver.version.empty() ? "of an unknown version" : driver.version);
  if (driver.cuda_version > 0)
    f.found += fmt::format(" (CUDA {}.{})", driver.cuda_version / 1000, driver.cuda_version % 1000 / 10);
  if (!software.no_cuda.empty()) {
    f.found += "; the program cannot use them: " + software.no_cuda;
    f.verdict = FindingVerdict::wrong;
    f.cost = "everything runs on the CPU";
  }
  findings.push_back(std::move(f));
}

void find_gpu_memory(const GpuDriver& driver, const MachineFiles& files, const Processors& machine,
                     const Software& software, Findings& findings) {
  const bool in_a_node = std::any_of(machine.nodes.begin(), machine.nodes.end(),
                                     [](const MemoryNode& node) { return node.cpus.empty() && node.bytes > 0; });
  const std::string parameters = files.text("/proc/driver/nvidia/params").value_or("");
  const bool asked_for = value_after(parameters, "CoherentGPUMemoryMode") == "\"driver\"";
  for (std::size_t i = 0; i < driver.gpus.size(); ++i) {
    const DriverGpu& gpu = driver.gpus[i];
    Finding f{.check = "gpu_memory", .subject = fmt::format("memory of GPU {}", i)};
    if (software.shares_memory) {
      f.found = "the CPU's: a run is planned in that one memory, less a margin, and moves nothing";
    } else if (!gpu.memory) {
      f.found = "the driver does not say how much";
      f.verdict = FindingVerdict::unknown;
    } else {
      f.found = format_bytes(*gpu.memory);
      if (gpu.chip_to_chip == true && in_a_node)
        f.found += ", which the kernel has as a NUMA node";
      else if (gpu.chip_to_chip == true)
        f.found += fmt::format(
            ", which the driver alone manages (CDMM mode{}): no NUMA node has it, so host memory cannot fall into it",
            asked_for ? ", NVreg_CoherentGPUMemoryMode=driver" : "");
    }
    findings.push_back(std::move(f));
  }
}

void find_pcie_links(const GpuDriver& driver, const std::vector<PciGpu>& gpus, Findings& findings) {
  const std::vector<Link> links = links_of(driver, gpus);
  for (std::size_t i = 0; i < links.size(); ++i) {
    const Link& link = links[i];
    Finding f{.check = "pcie_link", .subject = fmt::format("link of GPU {}", i)};
    if (link.chip_to_chip) {
      f.found = "NVLink-C2C to the host's processor; nothing is copied over PCIe";
    } else if (!link.now || !link.best) {
      f.found = "neither driver nor sysfs says how wide and how fast";
      f.verdict = FindingVerdict::unknown;
    } else {
      f.found = fmt::format("PCIe {}", link_text(*link.now));
      const bool narrow = link.now->lanes < link.best->lanes, slow = link.now->speed < link.best->speed;
      const double share = 100 * link.now->bytes() / link.best->bytes();
      if (narrow || (slow && link.busy)) {
        f.verdict = FindingVerdict::costs;
        f.found += fmt::format(", where {} is possible", link_text(*link.best));
        const LinkState busy{slow && !link.busy ? link.best->speed : link.now->speed, link.now->lanes};
        f.cost =
            fmt::format("gradients, weights and streamed layers cross at {:.0f}% of the speed{}",
                        slow && !link.busy ? 100 * busy.bytes() / link.best->bytes() : share, measured_link(link.name));
        f.mend = "seat the card in a slot with all lanes, and let the firmware run it at the slot's generation";
      } else if (slow) {
        f.found += fmt::format(", {} when it is busy: a GPU that has nothing to do lowers it", link_text(*link.best));
      }
    }
    findings.push_back(std::move(f));
  }
}

void find_gpu_clocks(const GpuDriver& driver, Findings& findings) {
  for (std::size_t i = 0; i < driver.gpus.size(); ++i) findings.push_back(clocks_of(driver.gpus[i], i));
}

void find_gpu_topology(const GpuDriver& driver, Findings& findings) {
  if (driver.pairs.empty()) return;
  Finding f{.check = "gpu_topology", .subject = "between GPUs"};
  std::size_t linked = 0;
  std::string others;
  for (const GpuPair& pair : driver.pairs) {
    if (pair.nvlink == true) {
      ++linked;
    } else {
      others += fmt::format("{}{}-{} {}{}", others.empty() ? "" : ", ", pair.first, pair.second, pair_text(pair),
                            pair.peer_access == false ? " without peer access" : "");
    }
  }
  f.found = fmt::format("NVLink between {} of {} pairs ({} links up at GPU 0)", linked, driver.pairs.size(),
                        driver.gpus.front().nvlinks);
  if (!others.empty()) {
    f.found += "; " + others;
    const auto known = known_hardware();
    const auto h200 =
        std::find_if(known.begin(), known.end(), [](const KnownHardware& hardware) { return hardware.key == "h200"; });
    f.verdict = FindingVerdict::costs;
    f.cost = "collectives cross PCIe, beside the copies to and from the host";
    if (h200 != known.end())
      f.cost += fmt::format("; over NVLink a GPU receives {:.0f} GB/s (configs/hardware/h200.json)",
                            h200->profile.between_gpus.peer / 1e9);
  }
  findings.push_back(std::move(f));
}

}  // namespace so
