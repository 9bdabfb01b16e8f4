#include "offload/host_clock.h"

namespace so {
namespace {

double seconds(HostClock::Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

void HostClock::start() {
  const std::lock_guard lock(mutex_);
  started_ = true;
  since_ = Clock::now();
}

double HostClock::enter(HostTime next) {
  const std::lock_guard lock(mutex_);
  const Clock::time_point at = Clock::now();
  const Clock::duration spent = at - since_;
  spent_[static_cast<std::size_t>(now_)] += spent;
  now_ = next;
  since_ = at;
  return seconds(spent);
}

HostClock::Reading HostClock::read() const {
  const std::lock_guard lock(mutex_);
  Reading reading{.at = Clock::now()};
  for (std::size_t i = 0; i < host_times; ++i) reading.seconds[i] = seconds(spent_[i]);
  if (started_) {
    const auto now = static_cast<std::size_t>(now_);
    reading.seconds[now] = seconds(spent_[now] + (reading.at - since_));
  }
  return reading;
}

}  // namespace so
