#include "base/mapping_guard.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>

namespace so {
namespace {

constexpr int exit_code = 2;  // as for every other file that the user can mend
constexpr std::size_t most_mappings = 4096;

// Read by the handler, which may take no lock: `begin` is set last and cleared first. The name is kept by pointer and
// never freed while the slot is in use; a slot's old name goes when the slot is used again.
struct Slot {
  std::atomic<std::uintptr_t> begin{0}, end{0};
  std::atomic<const char*> path{nullptr};
};
std::array<Slot, most_mappings> slots;
std::atomic<std::size_t> slots_used{0};
std::mutex writing;
struct sigaction former {};

void say(const char* text) {
  for (std::size_t left = std::strlen(text); left > 0;) {
    const ssize_t n = ::write(STDERR_FILENO, text, left);
    if (n <= 0) return;
    text += n;
    left -= static_cast<std::size_t>(n);
  }
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (std::size_t i = 0; i < slots_used.load(std::memory_order_acquire); ++i) {
    const Slot& slot = slots[i];
    const std::uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address >= slot.end.load(std::memory_order_acquire)) continue;
    say("superoffload: ");
    say(slot.path.load(std::memory_order_acquire));
    say(" was shortened, or its disk failed, while it was being read; see what writes to it, then start again\n");
    ::_exit(exit_code);
  }
  if ((former.sa_flags & SA_SIGINFO) != 0 && former.sa_sigaction != nullptr)
    return former.sa_sigaction(signal, info, context);
  if (former.sa_handler != SIG_DFL && former.sa_handler != SIG_IGN) return former.sa_handler(signal);
  ::signal(SIGBUS, SIG_DFL);  // the instruction is tried again, and ends the program as it would have
}

}  // namespace

void guard_mapping(const void* begin, std::size_t bytes, const std::filesystem::path& path) {
  const std::lock_guard lock(writing);
  static const bool installed = [] {
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO;
    ::sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, &action, &former) == 0;
  }();
  if (!installed) return;
  const std::size_t used = slots_used.load(std::memory_order_relaxed);
  std::size_t free = 0;
  while (free < used && slots[free].begin.load(std::memory_order_relaxed) != 0) ++free;
  if (free == most_mappings) return;
  // One line, whatever the name holds.
  std::string name = path.string();
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  char* copy = ::strdup(name.c_str());
  if (copy == nullptr) return;
  Slot& slot = slots[free];
  ::free(const_cast<char*>(slot.path.exchange(copy, std::memory_order_acq_rel)));
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  slot.end.store(address + bytes, std::memory_order_release);
  slot.begin.store(address, std::memory_order_release);
  if (free == used) slots_used.store(used + 1, std::memory_order_release);
}

void release_mapping(const void* begin) {
  const std::lock_guard lock(writing);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  for (std::size_t i = 0; i < slots_used.load(std::memory_order_relaxed); ++i)
    if (slots[i].begin.load(std::memory_order_relaxed) == address) {
      slots[i].begin.store(0, std::memory_order_release);
      return;
    }
}

}  // namespace so
