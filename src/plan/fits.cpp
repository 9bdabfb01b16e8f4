#include "plan/fits.h"

#include <fmt/format.h>

#include "base/units.h"

namespace so {

void require_fits_machine(const MemoryPlan& plan, const PlanningMachine& machine, const std::string& for_device,
                          const std::string& for_host) {
  const DeviceMemory device = own_memory(machine);
  require_fits(plan, machine.kind, usable_host(machine), machine.device_memory ? &device : nullptr, for_host,
               for_device);
  const std::size_t pinned = plan.total(MemoryKind::pinned);
  if (!machine.lockable || pinned <= *machine.lockable) return;
  // Whether the limit is for what a driver pins can only be tried (device/host_pages.h).
  if (machine.pins_beyond && machine.pins_beyond(*machine.lockable)) return;
  throw MemoryRefusal(
      fmt::format("not enough memory that can be pinned: {} needed, {} available (RLIMIT_MEMLOCK, ulimit -l)",
                  format_bytes(pinned), format_bytes(*machine.lockable)),
      "raise the limit with 'ulimit -l unlimited', or with memlock in /etc/security/limits.conf", plan,
      fmt::format("  pinned: {} needed, {} available (RLIMIT_MEMLOCK, ulimit -l): {} short\n", format_bytes(pinned),
                  format_bytes(*machine.lockable), format_bytes(pinned - *machine.lockable)));
}

void require_fits(const MemoryPlan& plan, Device& device, const std::string& for_device, const std::string& for_host) {
  const auto budget = device_budget(device);
  const DeviceMemory own{device.name(), budget.value_or(0)};
  require_fits(plan, device.kind(), available_host_memory(), budget ? &own : nullptr, for_host, for_device);
}

}  // namespace so
