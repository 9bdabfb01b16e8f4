// The reasons for which a device waits during a step, and the seconds by reason.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace so {

enum class WaitReason : std::uint8_t {
  host,      // the host had not computed the weights yet
  link,      // updated weights were on their way
  stream,    // streamed weights were
  gradient,  // a gradient of the step before was still needed
  verdict,   // from the end of backward until the host has decided and goes on
};
inline constexpr std::size_t wait_reasons = 5;
std::string_view name_of(WaitReason reason);
using WaitSeconds = std::array<double, wait_reasons>;

}  // namespace so
