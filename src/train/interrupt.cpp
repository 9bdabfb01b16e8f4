#include "train/interrupt.h"

#include <signal.h>

#include "base/error.h"

namespace so {
namespace {

volatile sig_atomic_t asked = 0;
struct sigaction previous_int, previous_term;

void on_signal(int signal) {
  asked = 1;
  // The next one meets what was there before us: by default the end of the process.
  sigaction(signal, signal == SIGINT ? &previous_int : &previous_term, nullptr);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  asked = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  SO_CHECK(sigaction(SIGINT, &action, &previous_int) == 0 && sigaction(SIGTERM, &action, &previous_term) == 0,
           "sigaction");
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &previous_int, nullptr);
  sigaction(SIGTERM, &previous_term, nullptr);
}

bool InterruptGuard::requested() const { return asked != 0; }

}  // namespace so
