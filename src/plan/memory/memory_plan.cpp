#include "plan/memory/memory_plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/quantities.h"

namespace so {
namespace {

// The most that the entries that `counts` take together in any of the phases.
template <class Counts>
std::size_t most(const MemoryPlan& plan, Phases within, Counts counts) {
  std::size_t most = 0;
  for (int phase = 0; phase < run_phases; ++phase) {
    const unsigned bit = 1u << phase;
    if ((within & bit) == 0) continue;
    std::size_t sum = 0;
    for (const MemoryPlan::Entry& entry : plan.entries)
      if ((entry.phases & bit) != 0 && counts(entry)) sum += entry.bytes;
    most = std::max(most, sum);
  }
  return most;
}

}  // namespace

std::string_view describe(Phases phases) {
  if (phases == while_starting) return "starting";
  if (phases == while_loading) return "loading";
  if (phases == while_training) return "training";
  if (phases == while_saving) return "saving";
  if (phases == while_exporting) return "exporting";
  if (phases == (while_saving | while_exporting)) return "saving, exporting";
  return {};
}

void MemoryPlan::add(const Ledger& ledger, Phases phases) {
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned, MemoryKind::pageable})
    for (const auto& [name, bytes] : ledger.peaks(kind)) add(kind, name, bytes, phases);
}

std::size_t MemoryPlan::total(MemoryKind kind, Phases within) const {
  return most(*this, within, [&](const Entry& entry) { return entry.kind == kind; });
}

bool MemoryPlan::on_host(MemoryKind kind, const Backend& device) {
  return kind != MemoryKind::device || !device.own_memory;
}

std::size_t MemoryPlan::host_total(const Backend& device, Phases within) const {
  return most(*this, within, [&](const Entry& entry) { return on_host(entry.kind, device); });
}

std::size_t MemoryPlan::allocatable(std::size_t bytes, const Backend& device, bool own) const {
  const auto here = [&](const Entry& entry) { return on_host(entry.kind, device) != own; };
  const std::size_t all = most(*this, every_phase, here),
                    allocated =
                        most(*this, every_phase, [&](const Entry&entry) { return entry.allocated && here(entry); });
  return allocated + (bytes > all ? bytes - all : 0);
}

std::string MemoryPlan::table() const {
  std::vector<Entry> sorted = entries;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Entry& a, const Entry& b) {
    return a.kind != b.kind ? a.kind < b.kind : a.bytes > b.bytes;
  });
  std::string text;
  for (const Entry& entry : sorted) {
    text += fmt::format("  {:<9} {:<26} {:>10}", name_of(entry.kind), entry.name, format_bytes(entry.bytes));
    if (const std::string_view when = describe(entry.phases); !when.empty()) text += fmt::format("  while {}", when);
    text += '\n';
  }
  return text;
}

}  // namespace so
