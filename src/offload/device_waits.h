// How long the device waited for the host or the link, by its own clock: a pair of timed events around each wait.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "offload/schedule/wait_reason.h"

namespace so {

class DeviceWaits {
 public:
  explicit DeviceWaits(Device& device) : device_(device) {}

  // Call these around the enqueueing of a wait: begin() and end() record a timed event before and after it.
  void begin(Stream& stream, WaitReason reason);
  void end(Stream& stream);
  // Returns how many waits have ended since the last collect().
  std::size_t count() const { return used_; }
  // Seconds of the waits that were not collected before. Waits for the device to come to the end of the last one.
  WaitSeconds collect();
  // Returns the seconds of the first `count` waits that the last collect() took.
  const WaitSeconds& before(std::size_t count) const { return before_[count]; }

 private:
  struct Pair {
    std::unique_ptr<Event> from, to;
    WaitReason reason = WaitReason::host;
  };
  Device& device_;
  std::vector<Pair> pairs_;  // the first `used_` are not collected
  std::size_t used_ = 0;
  std::vector<WaitSeconds> before_{WaitSeconds{}};
};

}  // namespace so
