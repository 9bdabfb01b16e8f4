// The memory of each kind that a run will need, found by a dry run of the real code, and whether it fits the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/host_memory.h"
#include "device/backend.h"
#include "device/device.h"

namespace so {

// The phases of a run, in order. Saving goes on beside training.
enum class RunPhase : std::uint8_t { starting, loading, training, saving, exporting };
inline constexpr int run_phases = 5;
using Phases = std::uint8_t;  // a set of them
constexpr Phases phases_of(std::initializer_list<RunPhase> list) {
  unsigned set = 0;
  for (const RunPhase phase : list) set |= 1u << static_cast<unsigned>(phase);
  return static_cast<Phases>(set);
}
inline constexpr Phases every_phase = (1 << run_phases) - 1;
inline constexpr Phases while_starting = phases_of({RunPhase::starting}),
                        while_loading = phases_of({RunPhase::loading}),
                        while_training = phases_of({RunPhase::training, RunPhase::saving}),
                        while_saving = phases_of({RunPhase::saving}),
                        while_exporting = phases_of({RunPhase::exporting}),
                        once_loaded = every_phase & ~(while_starting | while_loading);

// Names the phases of memory that is held for some of the time: "loading"; empty for memory that stays.
std::string_view describe(Phases phases);

// Totals are the most that any phase takes: what one has given back, the next may have.
struct MemoryPlan {
  struct Entry {
    MemoryKind kind;
    std::string name;
    std::size_t bytes;
    Phases phases = every_phase;  // in which it is held
    bool allocated = true;        // through a Device; else beside it: libraries, the program itself
  };
  std::vector<Entry> entries;

  void add(MemoryKind kind, std::string name, std::size_t bytes, Phases phases = every_phase) {
    if (bytes > 0) entries.push_back({kind, std::move(name), bytes, phases});
  }
  void add_beside(MemoryKind kind, std::string name, std::size_t bytes, Phases phases = every_phase) {
    if (bytes > 0) entries.push_back({kind, std::move(name), bytes, phases, false});
  }
  // All that a dry device's ledger has seen, at its peak by name.
  void add(const Ledger& ledger, Phases phases = every_phase);
  // The most of any of the phases in `within`.
  std::size_t total(MemoryKind kind, Phases within = every_phase) const;
  // Says whether memory of this kind is the host's: on the CPU device all kinds are.
  static bool on_host(MemoryKind kind, const Backend& device);
  std::size_t host_total(const Backend& device, Phases within = every_phase) const;
  // Returns how much a Device may allocate if the run is to have `bytes` of the device's own memory (`own`) or of the
  // host's: the most that is planned for any phase, and what no phase uses.
  std::size_t allocatable(std::size_t bytes, const Backend& device, bool own) const;
  // For people: a line an entry, kind by kind, the largest first; with its phase if it is held in one or two only.
  std::string table() const;
};

// A plan that exceeds a memory. The message is what is short and by how much (brief()), and what generally helps.
class MemoryRefusal : public Error {
 public:
  // `short_of`: for people, a line for each memory that the plan exceeds.
  MemoryRefusal(std::string brief, const std::string& advice, MemoryPlan plan, std::string short_of)
      : Error(brief + "; " + advice),
        brief_(std::move(brief)),
        plan_(std::move(plan)),
        short_of_(std::move(short_of)) {}
  const std::string& brief() const { return brief_; }
  const MemoryPlan& plan() const { return plan_; }
  const std::string& short_of() const { return short_of_; }

 private:
  std::string brief_;
  MemoryPlan plan_;
  std::string short_of_;
};

}  // namespace so
