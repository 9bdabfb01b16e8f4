// The machine that a run is planned for: what may be used of its memory, and how quick it is.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/host_memory.h"
#include "base/number_formats.h"
#include "device/backend.h"
#include "plan/machine/rates.h"

namespace so {

class Runtime;

// What the seconds that a plan counts for a unit of a model, forward and backward, have to be multiplied by.
struct UnitFactor {
  double forward = 1, backward = 1;
};

// The machine as a plan sees it: what it may use, and how fast that is.
struct PlanningMachine {
  const Backend* backend = &cpu_backend();
  std::string name;  // of the device
  // Bytes a plan may have of the device's own memory; none: it is the host's, and `host` is all of it.
  std::optional<std::size_t> device_memory;
  std::optional<std::size_t> whole_device_memory;  // what it could have if device_cap were not
  std::string device_limited_by = "free memory";   // device_memory, unless device_cap does
  HostMemory host;
  bool fixed_memory = false;                        // the host's is soldered: nobody can buy more
  std::optional<std::size_t> device_cap, host_cap;  // what the user lets the run have; device_memory knows the former
  // Whether the device pins as much host memory as state takes; none: it does. Asked if a choice depends on it.
  std::function<bool()> pins_state;
  ThreadPool* pool = nullptr;             // the host's; its size counts
  std::function<MachineRates()> rates;    // asked for if something depends on them: never on the CPU device
  std::string rates_origin = "measured";  // what reasons call them
  std::optional<std::size_t> held;        // host memory that the process has before the run; none: what it has now
  std::vector<UnitFactor> unit_factors;   // of the model that is planned, by unit (plan/measure_units.h); empty: all 1
};

// Whether the host's memory comes with its GPU: as one memory, or on a superchip.
bool has_fixed_memory(const Backend& backend, const NumaNodes& nodes);

// The user's limits on each memory, in bytes, for a run without the program itself; none: no limit.
struct MemoryCaps {
  std::optional<std::size_t> device, host;
};
// The limits that --device_memory and --host_memory set. Throws Error if the device has no memory of its own.
MemoryCaps memory_caps(const Backend& backend, std::optional<std::int64_t> device_memory,
                       std::optional<std::int64_t> host_memory);
void apply(const MemoryCaps& caps, PlanningMachine& machine);
// Sees to it that the run may have `bytes` of the host's memory, whether or not the machine has them.
void enlarge_host(PlanningMachine& machine, std::size_t bytes);
// The memory that a GPU which shares it with the CPU may have of what is available: less a margin, since a system that
// runs out of it may hang, where another would end the process. On other devices all of it.
HostMemory without_margin(const Backend& backend, HostMemory host);
// The host memory that no plan may exceed; and the amount to plan for, less a reserve unless the user set it.
HostMemory usable_host(const PlanningMachine& machine);
std::size_t usable_host_budget(const PlanningMachine& machine);
// The limit up to which spare optimizer state, which only saves time, may fill the host's memory.
std::size_t spare_budget(const PlanningMachine& machine);
// Bytes of the device's own memory that a plan may have in all, what this process holds by now included; none if the
// device has no memory of its own.
std::optional<std::size_t> device_budget(Device& device);
// The bytes of the device's own memory that a plan may have, and what limits them.
DeviceMemory own_memory(const PlanningMachine& machine);

// The machine as it is now; rates are measured in these formats. `host_ranks`: processes of the host that measure at
// once.
PlanningMachine planning_machine(Runtime& runtime, const NumberFormats& formats, const MemoryCaps& caps = {},
                                 int host_ranks = 1);

}  // namespace so
