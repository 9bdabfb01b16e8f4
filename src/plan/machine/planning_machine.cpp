#include "plan/machine/planning_machine.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/quantities.h"
#include "device/host_pages.h"
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
  const std::size_t available = machine.host.available;
  const auto wanted = static_cast<std::size_t>(static_cast<double>(available) * share);
  const std::size_t free = std::min(wanted, available - std::min(reserve, available / 10));
  return machine.host_cap ? std::min(free, *machine.host_cap) : free;
}

}  // namespace

std::optional<std::size_t> device_budget(Device& device) {
  const auto own = device.own_memory();
  if (!own) return std::nullopt;
  // Memory that we hold already is part of the plan, so it counts as free.
  return own->free + device.ledger().held(MemoryKind::device);
}

HostMemory usable_host(const PlanningMachine& machine) {
  if (machine.host_cap && *machine.host_cap < machine.host.available) return {*machine.host_cap, "--host_memory"};
  return machine.host;
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
    fail("--device_memory {}: the CPU device has no memory of its own; say with --host_memory what the run may have",
         *device_memory);
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
  if (backend_of(device).own_memory) {
    machine.lockable = lockable_bytes();
    machine.pins_beyond = [&device, known = std::make_shared<std::optional<bool>>()](std::size_t bytes) {
      if (!*known) try {
          device.allocate(MemoryKind::pinned, bytes + (1 << 20), "measuring the lock limit");
          *known = true;
        } catch (const Error&) {
          *known = false;
        }
      return **known;
    };
  }
  apply(caps, machine);
  return machine;
}

}  // namespace so
