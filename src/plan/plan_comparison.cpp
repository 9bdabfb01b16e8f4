#include "plan/plan_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/units.h"
#include "device/backend.h"
#include "plan/machine/host_memory.h"
#include "plan/machine/measure.h"

namespace so {

MemoryMeter::MemoryMeter(Device& device) : device_(device) {
  if (const auto own = device.own_memory()) free_ = own->free + device.ledger().held(MemoryKind::device);
  forget_peaks();
}

void MemoryMeter::forget_peaks() {
  for (int kind = 0; kind < memory_kinds; ++kind)
    peaks_before_[kind] = device_.ledger().peak(static_cast<MemoryKind>(kind));
}

std::size_t MemoryMeter::device_bytes() const {
  if (!free_) return ledger_peak(MemoryKind::device);
  return *free_ - std::min(device_.own_memory()->free, *free_);
}

std::size_t MemoryMeter::pinned_bytes() const { return ledger_peak(MemoryKind::pinned); }

std::size_t MemoryMeter::host_bytes() const { return peak_resident_bytes(); }

std::size_t MemoryMeter::ledger_peak(MemoryKind kind) const {
  const Ledger& ledger = device_.ledger();
  const std::size_t peak = ledger.peak(kind);
  return peak > peaks_before_[static_cast<std::size_t>(kind)] ? peak : ledger.held(kind);
}

StepSeconds seconds_of(std::span<const double> steps, const StepOverlap& overlap) {
  if (steps.empty()) return {};
  const auto count = static_cast<double>(steps.size());
  return {.step = median({steps.begin(), steps.end()}),
          .device = overlap.device_work() / count,
          .host_adamw = overlap.host_adamw() / count,
          .overlap = overlap.efficiency()};
}

std::vector<PlannedFigure> compare_with_plan(const TrainingPlan& plan, Device& device, const MemoryMeter& memory,
                                             const StepSeconds& seconds) {
  std::vector<PlannedFigure> figures;
  if (plan.estimate && seconds.step > 0) {
    figures.push_back({"step_seconds", plan.estimate->seconds(), seconds.step});
    const StepOverlap planned = plan.estimate->overlap();
    figures.push_back({"overlap_efficiency", planned.efficiency(), seconds.overlap});
    figures.push_back({"device_seconds", plan.estimate->gpu, seconds.device});
    if (planned.host_adamw() > 0 || seconds.host_adamw > 0)
      figures.push_back({"host_adamw_seconds", planned.host_adamw(), seconds.host_adamw});
  }
  const auto add = [&](const char* name, std::size_t planned, std::size_t measured) {
    if (planned > 0 || measured > 0)
      figures.push_back({name, static_cast<double>(planned), static_cast<double>(measured)});
  };
  add("device_bytes", plan.memory.total(MemoryKind::device), memory.device_bytes());
  add("pinned_bytes", plan.memory.total(MemoryKind::pinned), memory.pinned_bytes());
  add("host_bytes", plan.memory.host_total(backend_of(device)), memory.host_bytes());
  return figures;
}

std::string describe(const PlannedFigure& f) {
  const bool bytes = f.name.ends_with("_bytes");
  const auto text = [&](double value) {
    if (f.name == "overlap_efficiency") return fmt::format("{:.3f}", value);
    return bytes ? format_bytes(static_cast<std::size_t>(value)) : fmt::format("{:.4f} s", value);
  };
  const std::string what = bytes                            ? f.name.substr(0, f.name.find('_')) + " memory"
                           : f.name == "step_seconds"       ? "step"
                           : f.name == "device_seconds"     ? "device work of a step"
                           : f.name == "overlap_efficiency" ? "overlap efficiency"
                                                            : "AdamW on the host";
  const std::string difference =
      std::isfinite(f.difference()) ? fmt::format(" ({:+.1f}%)", 100 * f.difference()) : std::string();
  return fmt::format("{} {}, planned {}{}", what, text(f.measured), text(f.planned), difference);
}

}  // namespace so
