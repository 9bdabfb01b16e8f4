// Signals that ask a training run to save and stop.
#pragma once

#include <string>

namespace so {

// While one lives, SIGINT, SIGTERM, SIGHUP, SIGUSR1 (Slurm's warning) and SIGXCPU only make requested() true. A second
// SIGINT or SIGTERM, a second or more after the first of these two, ends the process at once, as it would without a
// guard. The pause is needed because one request often arrives twice: `timeout` signals the process and its group. The
// other signals never end it: the kernel repeats SIGXCPU every second, and a closing terminal sends SIGHUP twice.
// A signal that was ignored or blocked before stays so (nohup). One guard at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();  // restores what was there before
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  bool requested() const;
  // The first signal that came, "SIGTERM"; empty before.
  std::string signal_name() const;
  // Logs once, when it finds that a signal has come, that the run will save and stop.
  void announce();

 private:
  bool announced_ = false;
};

}  // namespace so
