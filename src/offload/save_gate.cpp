#include "offload/save_gate.h"

#include <chrono>

#include "base/error.h"

namespace so {

void SaveGate::begin() {
  std::lock_guard lock(mutex_);
  SO_CHECK(!active_, "a save is under way");
  active_ = true;
  pending_.assign(pending_.size(), true);
}

bool SaveGate::pending(int bucket) const {
  const std::lock_guard lock(mutex_);
  return pending_[static_cast<std::size_t>(bucket)];
}

void SaveGate::passed(int bucket) {
  {
    std::lock_guard lock(mutex_);
    pending_[static_cast<std::size_t>(bucket)] = false;
  }
  changed_.notify_all();
}

void SaveGate::end() {
  {
    std::lock_guard lock(mutex_);
    active_ = false;
    pending_.assign(pending_.size(), false);
  }
  changed_.notify_all();
}

double SaveGate::wait(int bucket) {
  std::unique_lock lock(mutex_);
  if (!pending_[static_cast<std::size_t>(bucket)]) return 0;
  const auto start = std::chrono::steady_clock::now();
  changed_.wait(lock, [&] { return !pending_[static_cast<std::size_t>(bucket)]; });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace so
