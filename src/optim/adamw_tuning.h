// How AdamW's loop on the CPU goes through memory. No bit of a result depends on it.
#pragma once

#include <cstdint>

namespace so {

// The default is the fastest on the x86-64 machines that were tried: their hardware follows the loop's streams by
// itself, and fetching ahead cost 2 to 15%. Other processors may want another, which is found by measuring the machine
// (plan/machine/measure_host.h).
struct AdamWTuning {
  static constexpr std::int64_t line = 32;  // elements: a tile is a multiple, so that tiles meet at cache lines
  static constexpr std::int64_t least_tile = 1 << 10, most_tile = 1 << 22, most_prefetch = 1 << 14;

  std::int64_t tile = 1 << 13;  // elements that a thread takes at a time
  std::int64_t prefetch = 0;    // elements ahead of the update that are prefetched into the cache; 0: none

  bool operator==(const AdamWTuning&) const = default;
  bool usable() const {
    return tile >= least_tile && tile <= most_tile && tile % line == 0 && prefetch >= 0 && prefetch <= most_prefetch;
  }
};

// For all updates of this process that begin from now on. Thread-safe. Throws Bug for one that is not usable().
void adamw_use_tuning(const AdamWTuning& tuning);
AdamWTuning adamw_tuning();

}  // namespace so
