#include "train/interrupt.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "support/label.h"

namespace so {
namespace {

// Signals go to the whole process: each case runs in one of its own.
class InterruptGuardTest : public testing::Test {
 protected:
  InterruptGuardTest() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU})
      before_.emplace_back(signal, ::signal(signal, SIG_DFL));
  }
  ~InterruptGuardTest() override {
    for (const auto& [signal, handler] : before_) ::signal(signal, handler);
  }

 private:
  std::vector<std::pair<int, void (*)(int)>> before_;
};

SO_LABEL(tsan, "InterruptGuardTest.*");
TEST_F(InterruptGuardTest, RemembersTheFirstSignal) {
  InterruptGuard guard;
  EXPECT_FALSE(guard.requested());
  EXPECT_EQ(guard.signal_name(), "");
  raise(SIGUSR1);
  raise(SIGTERM);
  raise(SIGTERM);  // at once: the same request
  EXPECT_TRUE(guard.requested());
  EXPECT_EQ(guard.signal_name(), "SIGUSR1");
}

TEST_F(InterruptGuardTest, ASecondCtrlCEndsTheProcess) {
  const auto ask_until_it_ends = [] {
    const InterruptGuard guard;
    for (;;) {
      raise(SIGINT);
      if (!guard.requested()) std::_Exit(3);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  };
  EXPECT_EXIT(ask_until_it_ends(), testing::KilledBySignal(SIGINT), "");
}

TEST_F(InterruptGuardTest, LeavesIgnoredSignalsAloneAndRestoresTheOthers) {
  ::signal(SIGHUP, SIG_IGN);
  {
    const InterruptGuard guard;
    raise(SIGHUP);
    EXPECT_FALSE(guard.requested());
  }
  EXPECT_EQ(::signal(SIGHUP, SIG_DFL), SIG_IGN);
  EXPECT_EQ(::signal(SIGTERM, SIG_DFL), SIG_DFL);
}

}  // namespace
}  // namespace so
