// Threads delayed at random where they meet (base/delay_point.h), for tests of schedules.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <thread>

#include "base/delay_point.h"

namespace so::test {

// While it lives, a thread at a delay point sleeps up to 300 microseconds one time in 16, gives its CPU away one time
// in 8, and else goes on. One at a time. The seed fixes each thread's delays by the order in which threads first come;
// that order, and so a failure, may still differ from run to run. Streams may outlive it.
class Jitter {
 public:
  explicit Jitter(std::uint64_t seed) {
    EXPECT_EQ(delay_hook.load(), nullptr) << "another one lives";
    state().seed = seed;
    state().threads = 0;
    ++state().epoch;
    delay_hook = &delay;
  }
  ~Jitter() { delay_hook = nullptr; }
  Jitter(const Jitter&) = delete;
  Jitter& operator=(const Jitter&) = delete;

  // Delay points passed so far, and how many of them slept.
  static std::int64_t passed() { return state().passed; }
  static std::int64_t slept() { return state().slept; }

 private:
  struct State {
    std::atomic<std::uint64_t> seed{0}, epoch{0}, threads{0};
    std::atomic<std::int64_t> passed{0}, slept{0};
  };
  static State& state() {
    static State instance;
    return instance;
  }

  static void delay() {
    State& s = state();
    ++s.passed;
    thread_local std::uint64_t epoch = 0;
    thread_local std::mt19937_64 random;
    if (epoch != s.epoch) {
      epoch = s.epoch;
      random.seed(s.seed * 1000 + s.threads++);
    }
    const std::uint64_t draw = random();
    if (draw % 16 == 0) {
      ++s.slept;
      std::this_thread::sleep_for(std::chrono::microseconds(draw / 16 % 301));
    } else if (draw % 8 == 1) {
      std::this_thread::yield();
    }
  }
};

}  // namespace so::test
