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
RateKey rate_key(Runtime& runtime, const NumberFormats& formats, int ranks = 1);

// Thread-safe between processes: files are replaced in one piece.
class RateCache {
 public:
  static constexpr int days_valid = 30;

  explicit RateCache(std::filesystem::path directory) : directory_(std::move(directory)) {}
  // Below XDG_CACHE_HOME or HOME; none if neither is set.
  static std::optional<RateCache> of_user();

  std::filesystem::path path_of(const RateKey& key) const;
  struct Found {
    MachineRates rates;
    std::string date;  // on which they were measured: "2026-11-21"
  };
  // None if there is no file, or it is not this user's alone, not of this machine, damaged or out of date, which the
  // log tells.
  std::optional<Found> find(const RateKey& key, std::time_t now) const;
  // Forgets what is there, so that the next run measures the machine again. Returns whether anything was.
  bool drop(const RateKey& key) const;
  // Replaces what is there. What goes wrong is a warning: a run does not depend on it.
  void store(const RateKey& key, const HardwareProfile& profile, std::time_t now) const;

 private:
  // Replaces the file of `key`.
  void write(const RateKey& key, const std::string& text) const;

  std::filesystem::path directory_;
};

std::string utc_date(std::time_t time);  // "2026-11-21"

struct RateUse {
  bool fresh = false;  // measure now, whatever was measured earlier
  bool keep = true;    // store what is measured
};
// Where a run's rates come from: an earlier measurement or, if there is none that holds, a new one. Does nothing on the
// CPU device, where nothing is measured.
void use_cached_rates(PlanningMachine& machine, Runtime& runtime, const NumberFormats& formats, RateUse use);

// As `superoffload profile` writes it.
HardwareProfile profile_of(const PlanningMachine& machine, const MachineRates& rates, std::time_t now);

}  // namespace so
