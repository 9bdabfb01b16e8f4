#include "plan/machine/planning_machine.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/quantities.h"
#include "ops/runtime.h"
#include "plan/machine/measure.h"

namespace so {
namespace {

// A plan takes this share of the free memory; the rest is for what other processes allocate while we run.
constexpr double host_share_of_free = 0.97;
// Up to where places for new state may fill it: they only save time, and files are cached in what is left.
constexpr double spare_share_of_free = 0.95;

// A share of the host's free memory, but on small machines no more than leaves 2 GiB, or a tenth; of what the user said
// that the run may have, all.
std::size_t share_of(const PlanningMachine& machine, double share) {
  constexpr std::size_t reserve = std::size_t{2} << 30;
  const std::size_t available = without_margin(*machine.backend, machine.host).available;
  const auto wanted = static_cast<std::size_t>(static_cast<double>(available) * share);
  const std::size_t free = std::min(wanted, available - std::min(reserve, available / 10));
  return machine.host_cap ? std::min(free, *machine.host_cap) : free;
}

// Of memory that a GPU shares with the CPU, what no plan has: a twentieth, and 4 GiB unless that is above a tenth.
constexpr std::size_t margin = std::size_t{4} << 30;

}  // namespace

bool has_fixed_memory(const Backend& backend, const NumaNodes& nodes) {
  return backend.shares_memory() || nodes.superchip;
}

HostMemory without_margin(const Backend& backend, HostMemory host) {
  if (!backend.shares_memory()) return host;
  const std::size_t left = std::max(std::min(margin, host.available / 10), host.available / 20);
  return {host.available - left,
          fmt::format("{}, which GPU and CPU share, less {}", host.limited_by, format_bytes(left))};
}

void enlarge_host(PlanningMachine& machine, std::size_t bytes) {
  if (machine.backend->shares_memory()) bytes += std::max(margin, bytes / 10);
  machine.host.available = std::max(machine.host.available, bytes);
}

std::optional<std::size_t> device_budget(Device& device) {
  const auto own = device.own_memory();
  if (!own) return std::nullopt;
  // Memory that we hold already is part of the plan, so it counts as free.
  return own->free + device.ledger().held(MemoryKind::device);
}

HostMemory usable_host(const PlanningMachine& machine) {
  const HostMemory host = without_margin(*machine.backend, machine.host);
  if (machine.host_cap && *machine.host_cap < host.available) return {*machine.host_cap, "--host_memory"};
  return host;
}

std::size_t usable_host_budget(const PlanningMachine& machine) { return share_of(machine, host_share_of_free); }

std::size_t spare_budget(const PlanningMachine& machine) { return share_of(machine, spare_share_of_free); }

DeviceMemory own_memory(const PlanningMachine& machine) {
  const bool capped = machine.device_cap && *machine.device_cap == machine.device_memory;
  return {machine.name, machine.device_memory.value_or(0), capped ? "--device_memory" : machine.device_limited_by};
}

MemoryCaps memory_caps(const Backend& backend, std::optional<std::int64_t> device_memory,
                       std::optional<std::int64_t> host_memory) {
  if (!backend.own_memory && device_memory)
    fail("--device_memory {}: {}; say with --host_memory what the run may have", *device_memory,
         backend.shares_memory() ? "the GPU shares the CPU's memory" : "the CPU device has no memory of its own");
  MemoryCaps caps;
  if (device_memory) caps.device = static_cast<std::size_t>(*device_memory);
  if (host_memory) caps.host = static_cast<std::size_t>(*host_memory);
  return caps;
}

void apply(const MemoryCaps& caps, PlanningMachine& machine) {
  machine.whole_device_memory = machine.device_memory;
  machine.device_cap = caps.device;
  machine.host_cap = caps.host;
  if (caps.device && machine.device_memory) machine.device_memory = std::min(*machine.device_memory, *caps.device);
}

PlanningMachine planning_machine(Runtime& runtime, const NumberFormats& formats, const MemoryCaps& caps,
                                 int host_ranks) {
  Device& device = runtime.device();
  const HostMemory host = available_host_memory();
  PlanningMachine machine{
      .backend = &backend_of(device),
      .name = device.name(),
      .device_memory = device_budget(device),
      .host = host,
      .fixed_memory = has_fixed_memory(backend_of(device), numa_nodes()),
      .pool = &runtime.host_pool(),
      .rates = [&runtime, formats,
                host_bytes =
                    std::min(host.available, caps.host.value_or(host.available)) / static_cast<std::size_t>(host_ranks),
                known = std::make_shared<std::optional<MachineRates>>()] {
        if (*known) return **known;
        // Ops of their own, since an instance is used with one stream.
        const auto ops = make_ops(runtime.device());
        const auto stream = runtime.device().create_stream("measure");
        *known = measure_rates(runtime.device(), *ops, *stream, runtime.host_pool(), formats, host_bytes / 4);
        forget_peak_resident();  // measuring takes more than a small model
        return **known;
      }};
  if (backend_of(device).own_processors)
    machine.pins_state = [&device, known = std::make_shared<std::optional<bool>>()] {
      // Some drivers stop at 210 MB in all.
      constexpr std::size_t trial = std::size_t{256} << 20;
      if (!*known) try {
          *known = device.mapped(device.allocate(MemoryKind::pinned, trial, "trying to pin")) != nullptr;
        } catch (const Error&) {
          *known = false;
        }
      return **known;
    };
  apply(caps, machine);
  return machine;
}

}  // namespace so
