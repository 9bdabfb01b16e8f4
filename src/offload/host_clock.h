// The time of the host's optimizer thread, by what it does. Its parts add up to the time that passes, to the
// nanosecond, because each moment at which it turns to something else ends one part and begins the next.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "offload/schedule/host_time.h"

namespace so {

class HostClock {
 public:
  using Clock = std::chrono::steady_clock;

  // From now on time passes; before, all parts are 0.
  void start();
  // The thread turns to `next`. Returns the seconds of what it did until now.
  double enter(HostTime next);

  // Seconds by part until `at`, a moment during the call. On any thread.
  struct Reading {
    Clock::time_point at;
    HostSeconds seconds{};
  };
  Reading read() const;

 private:
  mutable std::mutex mutex_;
  bool started_ = false;
  HostTime now_ = HostTime::other;
  Clock::time_point since_{};
  std::array<Clock::duration, host_times> spent_{};  // of parts that have ended
};

}  // namespace so
