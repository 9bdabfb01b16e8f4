#include "offload/device_waits.h"

namespace so {

void DeviceWaits::begin(Stream& stream, WaitReason reason) {
  if (used_ == pairs_.size())
    pairs_.push_back({device_.create_event(Timing::on), device_.create_event(Timing::on), reason});
  Pair& pair = pairs_[used_];
  pair.reason = reason;
  stream.record(*pair.from);
}

void DeviceWaits::end(Stream& stream) { stream.record(*pairs_[used_++].to); }

WaitSeconds DeviceWaits::collect() {
  before_.assign(1, WaitSeconds{});
  for (std::size_t i = 0; i < used_; ++i) {
    pairs_[i].to->synchronize();
    WaitSeconds seconds = before_.back();
    seconds[static_cast<std::size_t>(pairs_[i].reason)] += pairs_[i].to->seconds_since(*pairs_[i].from);
    before_.push_back(seconds);
  }
  used_ = 0;
  return before_.back();
}

}  // namespace so
