// A run's plan beside what came of it: the step, and the most of each kind of memory.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "io/metrics.h"
#include "plan/machine/rate_cache.h"
#include "plan/step_figures.h"
#include "plan/training_plan.h"

namespace so {

// Measures how much more of each kind of memory the process has than when this object was made, which is before
// anything that the plan is about is allocated. For one thread; the device must outlive it.
class MemoryMeter {
 public:
  explicit MemoryMeter(Device& device);
  // Starts the peaks anew: memory that was given back before, of measuring the machine say, is not the run's.
  void forget_peaks();

  // The most so far, of memory that nothing is given back of while the run lasts. On a device with memory of its own as
  // its driver counts it, which no other process should be using; else by the ledger.
  std::size_t device_bytes() const;
  std::size_t pinned_bytes() const;  // by the ledger
  std::size_t host_bytes() const;    // the most that was resident of this process, ever
  // The most bytes that each name of the ledger held at once. Without names that held no more than they did before.
  std::map<std::string, std::size_t> by_name(MemoryKind kind) const;

 private:
  std::size_t ledger_peak(MemoryKind kind) const;

  Device& device_;
  std::optional<std::size_t> free_;  // of the device, and what we hold of it
  std::size_t peaks_before_[memory_kinds] = {};
  std::map<std::string, std::size_t> names_before_[memory_kinds];
};

// step_seconds, overlap_efficiency, device_seconds, host_adamw_seconds, device_bytes, pinned_bytes and host_bytes,
// those that were planned or measured at all.
std::vector<PlannedFigure> compare_with_plan(const TrainingPlan& plan, Device& device, const MemoryMeter& memory,
                                             const StepFigures& steps);

// Drops the rates that a run's plan was made from if its steps took a tenth more or less than planned, so that the next
// run measures the machine again. Returns whether there were any.
bool drop_wrong_rates(std::span<const PlannedFigure> figures, const RateCache& cache, const RateKey& key);

// The plan's memory by kind and name, the most in any phase; and beside it, with a meter, what was measured of it, with
// the names that were not planned behind them.
std::vector<NamedMemory> memory_by_name(const MemoryPlan& plan, const MemoryMeter* meter = nullptr);

// For people: "step 2.7240 s, planned 2.7280 s (-0.1%)".
std::string describe(const PlannedFigure& figure);

}  // namespace so
