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
  };
  std::vector<Entry> entries;

  void add(MemoryKind kind, std::string name, std::size_t bytes) { entries.push_back({kind, std::move(name), bytes}); }
  // All that a dry device's ledger has seen, at its peak by name.
  void add(const Ledger& ledger);
  std::size_t total(MemoryKind kind) const;
  // Of host memory: on the CPU device every kind is.
  std::size_t host_total(DeviceKind device) const;
  std::string table() const;
};

// Throws Error with the table, what is short and what would help (`advice`), if the plan exceeds the memory.
void require_fits(const MemoryPlan& plan, DeviceKind device, const HostMemory& memory, const std::string& advice);

}  // namespace so
