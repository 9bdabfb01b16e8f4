#include "train/interrupt.h"

#include <signal.h>
#include <time.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>

#include "base/error.h"
#include "base/log.h"

namespace so {
namespace {

constexpr std::array handled = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU};
std::array<struct sigaction, handled.size()> previous;

// The handler writes these, on whatever thread a signal meets.
std::atomic<int> first_signal = 0;
std::atomic<std::int64_t> first_end = 0;  // the second in which SIGINT or SIGTERM first came; 0: not yet
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<std::int64_t>::is_always_lock_free,
              "a signal handler may use only lock-free atomics");

bool ends_at_once(int signal) {
  if (signal != SIGINT && signal != SIGTERM) return false;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t second = now.tv_sec + 1;
  std::int64_t first = 0;
  if (first_end.compare_exchange_strong(first, second)) return false;
  return second > first + 1;  // at least one second lies between
}

void on_signal(int signal) {
  const int saved_errno = errno;
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
  if (ends_at_once(signal)) {
    ::signal(signal, SIG_DFL);
    raise(signal);  // delivered when the handler returns
  }
  errno = saved_errno;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  first_signal = 0;
  first_end = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : handled) sigaddset(&action.sa_mask, signal);
  for (std::size_t i = 0; i < handled.size(); ++i) {
    SO_CHECK(sigaction(handled[i], nullptr, &previous[i]) == 0, "signal {}", handled[i]);
    if (previous[i].sa_handler == SIG_IGN) continue;
    SO_CHECK(sigaction(handled[i], &action, nullptr) == 0, "signal {}", handled[i]);
  }
}

InterruptGuard::~InterruptGuard() {
  for (std::size_t i = 0; i < handled.size(); ++i) sigaction(handled[i], &previous[i], nullptr);
}

bool InterruptGuard::requested() const { return first_signal != 0; }

std::string InterruptGuard::signal_name() const {
  const int signal = first_signal;
  if (signal == 0) return "";
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : fmt::format("signal {}", signal);
}

void InterruptGuard::announce() {
  if (announced_ || !requested()) return;
  announced_ = true;
  log_info("{}: the run ends its step, saves and stops (a second SIGINT or SIGTERM ends it at once)", signal_name());
}

}  // namespace so
