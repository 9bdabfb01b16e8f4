// Waiting for a stream where nothing may be thrown: in a destructor, or at the end of a scope.
#pragma once

#include "base/log.h"
#include "device/device.h"

namespace so {

// Waits for the stream. Its error goes to the log at this level, and no further.
void wait_or_log(Stream& stream, LogLevel level) noexcept;

// Waits for the stream at the end of the scope, by return or by exception, so that nothing that was made before this
// object goes while enqueued work still uses it. An error of the stream is logged only: it was thrown before, or it
// follows from what is being thrown.
class WaitOnExit {
 public:
  explicit WaitOnExit(Stream& stream) : stream_(stream) {}
  ~WaitOnExit() { wait_or_log(stream_, LogLevel::debug); }
  WaitOnExit(const WaitOnExit&) = delete;
  WaitOnExit& operator=(const WaitOnExit&) = delete;

 private:
  Stream& stream_;
};

}  // namespace so
