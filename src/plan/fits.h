// Whether a memory plan fits the machine that it is made for.
#pragma once

#include <string>

#include "plan/machine/planning_machine.h"
#include "plan/memory_plan.h"

namespace so {

// Throws MemoryRefusal for a plan that exceeds what the machine has: `for_device` and `for_host` say what helps.
void require_fits_machine(const MemoryPlan& plan, const PlanningMachine& machine, const std::string& for_device,
                          const std::string& for_host);
// Refuses a plan that exceeds the memory of the host, or of a device that has its own. `device_advice` and
// `host_advice` say what helps.
void require_fits(const MemoryPlan& plan, Device& device, const std::string& device_advice,
                  const std::string& host_advice);

}  // namespace so
