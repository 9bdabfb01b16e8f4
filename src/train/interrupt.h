// Ctrl-C (SIGINT) and SIGTERM: asked once, the run ends its step, saves and stops; asked again, it ends at once.
#pragma once

namespace so {

// While one lives, the first signal only makes requested() true.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  bool requested() const;
};

}  // namespace so
