#include "plan/memory/memory_room.h"

#include <fmt/format.h>

#include "base/quantities.h"

namespace so {
namespace {

// The largest entry that `counts`; null if there is none.
template <class Counts>
const MemoryPlan::Entry* largest(const MemoryPlan& plan, Counts counts) {
  const MemoryPlan::Entry* found = nullptr;
  for (const MemoryPlan::Entry& entry : plan.entries)
    if (counts(entry) && (!found || entry.bytes > found->bytes)) found = &entry;
  return found;
}

}  // namespace

std::string MemoryRoom::short_of(const MemoryPlan& plan) const {
  std::string text;
  const auto line = [&](const std::string& memory, std::size_t needed, std::size_t available, const std::string& by) {
    if (needed > available)
      text += fmt::format("  {}: {} needed, {} available ({}): {} short\n", memory, format_bytes(needed),
                          format_bytes(available), by, format_bytes(needed - available));
  };
  if (device) line(device->name, plan.total(MemoryKind::device), device->available, device->limited_by);
  line(backend->shares_memory() ? "memory" : "host", plan.host_total(*backend), host.available, host.limited_by);
  return text;
}

std::optional<MemoryRefusal> MemoryRoom::misfit(const MemoryPlan& plan, const MemoryAdvice& advice) const {
  const auto refusal = [&](const std::string& where, std::size_t needed, std::size_t available, const std::string& by,
                           const std::string& what_helps, const auto& counts) {
    const auto* most = largest(plan, counts);
    return MemoryRefusal(
        fmt::format("not enough memory{}: {} needed (most of it: {}, {}), {} available ({})", where,
                    format_bytes(needed), most->name, format_bytes(most->bytes), format_bytes(available), by),
        what_helps, plan, short_of(plan));
  };
  if (device && plan.total(MemoryKind::device) > device->available)
    return refusal(" on " + device->name, plan.total(MemoryKind::device), device->available, device->limited_by,
                   advice.for_device, [](const MemoryPlan::Entry& entry) { return entry.kind == MemoryKind::device; });
  if (plan.host_total(*backend) > host.available)
    return refusal("", plan.host_total(*backend), host.available, host.limited_by, advice.for_host,
                   [&](const MemoryPlan::Entry& entry) { return MemoryPlan::on_host(entry.kind, *backend); });
  return std::nullopt;
}

MemoryRoom room_of(const PlanningMachine& machine) {
  MemoryRoom room{machine.backend, usable_host(machine), std::nullopt};
  if (machine.device_memory) room.device = own_memory(machine);
  return room;
}

MemoryRoom room_of(Device& device) {
  const Backend& backend = backend_of(device);
  MemoryRoom room{&backend, without_margin(backend, available_host_memory()), std::nullopt};
  if (const auto budget = device_budget(device)) room.device = DeviceMemory{device.name(), *budget};
  return room;
}

}  // namespace so
