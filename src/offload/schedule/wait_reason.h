// The reasons for which a device waits during a step, and the seconds by reason.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace so {

enum class WaitReason : std::uint8_t {
  host,        // the host had not computed the weights yet
  link,        // updated weights were on their way
  stream,      // weights that are brought for each use were: streamed or gathered
  gradient,    // the memory for a gradient was still in use: the host, or a reduction over ranks, had not read it yet
  verdict,     // from the end of backward until the host has decided and goes on
  checkpoint,  // a checkpoint had not saved yet what the device was to update
  moving,      // with one rank, gradients that move to host memory were on their way, or their sum was on its way back
};
inline constexpr std::size_t wait_reasons = 7;
std::string_view name_of(WaitReason reason);
// In words for people: the device is idle, waiting for this.
std::string_view awaited(WaitReason reason);
using WaitSeconds = std::array<double, wait_reasons>;

}  // namespace so
