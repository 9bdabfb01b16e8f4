// How long the device waited for the host or the link, by its own clock: a pair of timed events around each wait.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "device/device.h"

namespace so {

// What a device can wait for.
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

class DeviceWaits {
 public:
  explicit DeviceWaits(Device& device) : device_(device) {}

  // Between the two calls the stream's work up to now ends and what it waits for is enqueued.
  void begin(Stream& stream, WaitReason reason);
  void end(Stream& stream);
  // Seconds of the waits that have ended on the device and were not collected before.
  WaitSeconds collect();

 private:
  struct Pair {
    std::unique_ptr<Event> from, to;
    WaitReason reason = WaitReason::host;
  };
  Device& device_;
  std::vector<Pair> pairs_;  // the first `used_` are under way or not collected
  std::size_t used_ = 0;
};

}  // namespace so
