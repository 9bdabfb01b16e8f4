// Whether a table of memory fits the machine that it is made for. This is the one place that says so.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "plan/machine/planning_machine.h"
#include "plan/memory/memory_plan.h"

namespace so {

// Advice for the user if the memory of the device, or that of the host, is short.
struct MemoryAdvice {
  std::string for_device, for_host;
};

// How much of each memory a plan may have, and which limit that comes from.
struct MemoryRoom {
  const Backend* backend = &cpu_backend();
  HostMemory host;
  std::optional<DeviceMemory> device;  // none: it has no memory of its own

  // Returns nothing if the plan fits; else what is short: how much is needed and of what most, how much there is and
  // what limits it, and what would help.
  std::optional<MemoryRefusal> misfit(const MemoryPlan& plan, const MemoryAdvice& advice = {}) const;
  // Returns a line for each of the two memories that the plan exceeds: needed, there, short; by what limited.
  std::string short_of(const MemoryPlan& plan) const;
};
MemoryRoom room_of(const PlanningMachine& machine);  // with what the user lets the run have
MemoryRoom room_of(Device& device);                  // as the machine is now

}  // namespace so
