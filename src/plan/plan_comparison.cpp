#include "plan/plan_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/host_memory.h"
#include "base/quantities.h"
#include "device/backend.h"

namespace so {

MemoryMeter::MemoryMeter(Device& device) : device_(device) {
  if (const auto own = device.own_memory()) free_ = own->free + device.ledger().held(MemoryKind::device);
  forget_peaks();
}

void MemoryMeter::forget_peaks() {
  for (int kind = 0; kind < memory_kinds; ++kind) {
    peaks_before_[kind] = device_.ledger().peak(static_cast<MemoryKind>(kind));
    names_before_[kind] = device_.ledger().peaks(static_cast<MemoryKind>(kind));
  }
}

std::size_t MemoryMeter::device_bytes() const {
  if (!free_) return ledger_peak(MemoryKind::device);
  return *free_ - std::min(device_.own_memory()->free, *free_);
}

std::size_t MemoryMeter::pinned_bytes() const { return ledger_peak(MemoryKind::pinned); }

std::size_t MemoryMeter::host_bytes() const {
  // What the driver hands out of shared memory is not resident in the process.
  return peak_resident_bytes() + (backend_of(device_).shares_memory() ? ledger_peak(MemoryKind::device) : 0);
}

std::map<std::string, std::size_t> MemoryMeter::by_name(MemoryKind kind) const {
  std::map<std::string, std::size_t> names = device_.ledger().peaks(kind);
  for (const auto& [name, bytes] : names_before_[static_cast<std::size_t>(kind)])
    if (const auto now = names.find(name); now != names.end() && now->second == bytes) names.erase(now);
  return names;
}

std::size_t MemoryMeter::ledger_peak(MemoryKind kind) const {
  const Ledger& ledger = device_.ledger();
  const std::size_t peak = ledger.peak(kind);
  return peak > peaks_before_[static_cast<std::size_t>(kind)] ? peak : ledger.held(kind);
}

std::vector<PlannedFigure> compare_with_plan(const TrainingPlan& plan, Device& device, const MemoryMeter& memory,
                                             const StepFigures& steps) {
  std::vector<PlannedFigure> figures;
  if (plan.estimate && steps.steps > 0) {
    const StepOverlap planned = plan.estimate->overlap();
    const StepOverlap& measured = steps.sum.overlap;
    figures.push_back({"step_seconds", plan.estimate->seconds(), steps.seconds()});
    figures.push_back({"overlap_efficiency", planned.efficiency(), measured.efficiency()});
    figures.push_back({"device_seconds", plan.estimate->gpu, steps.of_a_step(measured.device_work())});
    if (planned.host_adamw() > 0 || measured.host_adamw() > 0)
      figures.push_back({"host_adamw_seconds", planned.host_adamw(), steps.of_a_step(measured.host_adamw())});
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

bool drop_wrong_rates(std::span<const PlannedFigure> figures, const RateCache& cache, const RateKey& key) {
  constexpr double wrong = 0.1;
  const auto step =
      std::find_if(figures.begin(), figures.end(), [](const auto& f) { return f.name == "step_seconds"; });
  return step != figures.end() && std::abs(step->difference()) >= wrong && cache.drop(key);
}

std::vector<NamedMemory> memory_by_name(const MemoryPlan& plan, const MemoryMeter* meter) {
  struct Use {
    std::array<std::size_t, run_phases> bytes{};  // by phase
    Phases phases = 0;
  };
  std::vector<NamedMemory> list;
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned, MemoryKind::pageable}) {
    std::map<std::string, Use> uses;
    for (const MemoryPlan::Entry& entry : plan.entries) {
      if (entry.kind != kind) continue;
      Use& use = uses[entry.name];
      use.phases = static_cast<Phases>(use.phases | entry.phases);
      for (std::size_t phase = 0; phase < run_phases; ++phase)
        if ((entry.phases >> phase & 1u) != 0) use.bytes[phase] += entry.bytes;
    }
    const auto measured = meter != nullptr ? meter->by_name(kind) : std::map<std::string, std::size_t>();
    for (const auto& [name, bytes] : measured) uses.try_emplace(name);
    for (const auto& [name, use] : uses) {
      NamedMemory& entry = list.emplace_back();
      entry.kind = name_of(kind);
      entry.name = name;
      entry.planned = *std::max_element(use.bytes.begin(), use.bytes.end());
      entry.phases = describe(use.phases);
      if (const auto found = measured.find(name); found != measured.end())
        entry.measured = static_cast<double>(found->second);
    }
  }
  return list;
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
