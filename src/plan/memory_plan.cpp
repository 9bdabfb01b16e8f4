#include "plan/memory_plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"

namespace so {

void MemoryPlan::add(const Ledger& ledger) {
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned, MemoryKind::pageable})
    for (const auto& [name, bytes] : ledger.peaks(kind)) add(kind, name, bytes);
}

std::size_t MemoryPlan::total(MemoryKind kind) const {
  std::size_t sum = 0;
  for (const Entry& entry : entries)
    if (entry.kind == kind) sum += entry.bytes;
  return sum;
}

bool MemoryPlan::on_host(MemoryKind kind, DeviceKind device) {
  return kind != MemoryKind::device || device == DeviceKind::cpu;
}

std::size_t MemoryPlan::host_total(DeviceKind device) const {
  std::size_t sum = 0;
  for (const Entry& entry : entries)
    if (on_host(entry.kind, device)) sum += entry.bytes;
  return sum;
}

std::size_t MemoryPlan::allocatable(std::size_t bytes, DeviceKind device, bool own) const {
  for (const Entry& entry : entries)
    if (!entry.allocated && on_host(entry.kind, device) != own) bytes -= std::min(bytes, entry.bytes);
  return bytes;
}

std::string MemoryPlan::table() const {
  std::vector<Entry> sorted = entries;
  std::stable_sort(sorted.begin(), sorted.end(), [](const Entry& a, const Entry& b) {
    return a.kind != b.kind ? a.kind < b.kind : a.bytes > b.bytes;
  });
  std::string text;
  for (const Entry& entry : sorted)
    text += fmt::format("  {:<9} {:<26} {:>10}\n", name_of(entry.kind), entry.name, format_bytes(entry.bytes));
  return text;
}

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

void require_fits(const MemoryPlan& plan, DeviceKind device, const HostMemory& memory, const std::string& advice) {
  const std::size_t needed = plan.host_total(device);
  if (needed <= memory.available) return;
  const auto* most =
      largest(plan, [&](const MemoryPlan::Entry& entry) { return MemoryPlan::on_host(entry.kind, device); });
  fail("not enough memory: {} needed (most of it: {}, {}), {} available ({}); {}", format_bytes(needed), most->name,
       format_bytes(most->bytes), format_bytes(memory.available), memory.limited_by, advice);
}

void require_device_fits(const MemoryPlan& plan, const std::string& name, std::size_t available,
                         const std::string& advice) {
  const std::size_t needed = plan.total(MemoryKind::device);
  if (needed <= available) return;
  const auto* most = largest(plan, [](const MemoryPlan::Entry& entry) { return entry.kind == MemoryKind::device; });
  fail("not enough memory on {}: {} needed (most of it: {}, {}), {} available; {}", name, format_bytes(needed),
       most->name, format_bytes(most->bytes), format_bytes(available), advice);
}

}  // namespace so
