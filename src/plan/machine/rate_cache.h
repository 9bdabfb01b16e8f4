// Rates of this machine, measured once and used by later runs: a file in the user's cache directory.
#pragma once

#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "ops/runtime.h"
#include "plan/machine/hardware.h"
#include "plan/machine/planning_machine.h"

namespace so {

// The key of stored rates: all that measured rates depend on.
struct RateKey {
  std::string gpu, cpu;              // their names
  int threads = 0;                   // of the host
  std::string program;               // version
  std::string activations, moments;  // number formats
  int ranks = 1;                     // of the host, that measured at once
  bool operator==(const RateKey&) const = default;
};
RateKey rate_key(Runtime& runtime, const NumberFormats& formats);

// The host's rates as the steps of a run had them, and of the link what it did both ways at once; 0: nothing was
// learned of it. Otherwise as MachineRates has them.
struct LearnedRates {
  double host_adamw = 0, host_adamw_wide = 0, host_memory = 0, link_both = 0;
  std::string source;  // "240 steps of a run"
  bool operator==(const LearnedRates&) const = default;
};

// Thread-safe between processes: files are replaced in one piece.
class RateCache {
 public:
  static constexpr int days_valid = 30;

  explicit RateCache(std::filesystem::path directory) : directory_(std::move(directory)) {}
  // Below XDG_CACHE_HOME or HOME; none if neither is set.
  static std::optional<RateCache> of_user();

  std::filesystem::path path_of(const RateKey& key) const;
  struct Found {
    MachineRates rates;  // as measured, with what was learned since
    std::string date;    // "2026-11-21"
    std::optional<LearnedRates> learned;
    std::string learned_date;
  };
  // None if there is no file, or it is not this user's alone, not of this machine, damaged or out of date, which the
  // log tells.
  std::optional<Found> find(const RateKey& key, std::time_t now) const;
  // Adds what a run has learned to what was measured, in place of what an earlier run had; a new measurement forgets
  // it. Returns whether it is kept: only where there are rates to be found. What goes wrong is a warning.
  bool learn(const RateKey& key, const LearnedRates& learned, std::time_t now) const;
  // Replaces what is there. What goes wrong is a warning: a run does not depend on it.
  void store(const RateKey& key, const HardwareProfile& profile, std::time_t now) const;

 private:
  // Replaces the file of `key`; whether that went well.
  bool write(const RateKey& key, const std::string& text) const;

  std::filesystem::path directory_;
};

std::string utc_date(std::time_t time);  // "2026-11-21"

struct RateUse {
  bool fresh = false;  // measure now, whatever was measured earlier
  bool keep = true;    // store what is measured
};
// Where a run's rates come from: an earlier measurement, with what runs have learned since, or, if there is none that
// holds, a new one. Does nothing on
// the CPU device, where nothing is measured.
void use_cached_rates(PlanningMachine& machine, Runtime& runtime, const NumberFormats& formats, RateUse use);

// As `superoffload profile` writes it.
HardwareProfile profile_of(const PlanningMachine& machine, const MachineRates& rates, std::time_t now);

}  // namespace so
