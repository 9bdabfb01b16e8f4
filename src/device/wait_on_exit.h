// A scope that the work of a stream may not outlive.
#pragma once

#include "base/log.h"
#include "device/device.h"

namespace so {

// Waits for the stream at the end of the scope, by return or by exception, so that nothing that was made before this
// object goes while enqueued work still uses it. An error of the stream is logged only: it was thrown before, or it
// follows from what is being thrown.
class WaitOnExit {
 public:
  explicit WaitOnExit(Stream& stream) : stream_(stream) {}
  ~WaitOnExit() {
    try {
      stream_.synchronize();
    } catch (const std::exception& error) {
      log_debug("{}: {}", stream_.name(), error.what());
    }
  }
  WaitOnExit(const WaitOnExit&) = delete;
  WaitOnExit& operator=(const WaitOnExit&) = delete;

 private:
  Stream& stream_;
};

}  // namespace so
