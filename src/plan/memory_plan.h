// What a run will need of each kind of memory, learnt from a dry run of the real code, and whether the machine has it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "device/device.h"
#include "plan/host_memory.h"

namespace so {

struct MemoryPlan {
  struct Entry {
    MemoryKind kind;
    std::string name;
    std::size_t bytes;
    bool allocated = true;  // through a Device; else beside it: libraries, the program itself
  };
  std::vector<Entry> entries;

  void add(MemoryKind kind, std::string name, std::size_t bytes) { entries.push_back({kind, std::move(name), bytes}); }
  void add_beside(MemoryKind kind, std::string name, std::size_t bytes) {
    entries.push_back({kind, std::move(name), bytes, false});
  }
  // All that a dry device's ledger has seen, at its peak by name.
  void add(const Ledger& ledger);
  std::size_t total(MemoryKind kind) const;
  // Of host memory: on the CPU device every kind is.
  static bool on_host(MemoryKind kind, DeviceKind device);
  std::size_t host_total(DeviceKind device) const;
  // Of a memory of `bytes`, what is left for a Device to allocate: in the device's own memory (`own`), or in the
  // host's.
  std::size_t allocatable(std::size_t bytes, DeviceKind device, bool own) const;
  // For people: a line an entry, kind by kind, the largest first.
  std::string table() const;
};

// Throws Error if the plan exceeds the memory of the host: how much is needed and of what most, how much there is and
// what limits it, and what would help (`advice`).
void require_fits(const MemoryPlan& plan, DeviceKind device, const HostMemory& memory, const std::string& advice);
// The same for memory of kind `device` of a device that has its own, called `name`, of which the plan may take
// `available` bytes.
void require_device_fits(const MemoryPlan& plan, const std::string& name, std::size_t available,
                         const std::string& advice);

}  // namespace so
