// The host's optimizer thread does one of these at any time, so that its seconds add up to those that pass. The engine
// counts them by the clock (offload/host_clock.h), the simulator in virtual time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace so {

enum class HostTime : std::uint8_t {
  adamw,  // updates and previews, also those that a clipped or skipped step makes void
  other,  // weights put back after a skipped step, and what is between two buckets
  // It is idle, waiting for:
  gradient,    // a gradient that the device has not computed yet
  fetch,       // one that is on its way to the host
  place,       // a place for new state; there are gradients, and all places hold speculated state
  verdict,     // the verdict, until which the policy has left what there is, or all is done
  send,        // earlier weights to leave the memory that new ones are written to
  checkpoint,  // a checkpoint that has not saved yet what is to be updated
};
inline constexpr std::size_t host_times = 8;
std::string_view name_of(HostTime time);
// In words for people: what it does, or what it waits for.
std::string_view described(HostTime time);
constexpr bool is_idle(HostTime time) { return time != HostTime::adamw && time != HostTime::other; }
using HostSeconds = std::array<double, host_times>;

}  // namespace so
