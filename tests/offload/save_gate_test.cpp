#include "offload/save_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/error.h"

namespace so {
namespace {

// Long enough for a thread that is not held back to come through; if it is slower, a test misses a fault, it does not
// invent one.
void give_others_time() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

// A thread that waits for a bucket, and whether it has come through.
class Waiter {
 public:
  Waiter(SaveGate& gate, int bucket)
      : thread_([this, &gate, bucket] {
          seconds_ = gate.wait(bucket);
          through_ = true;
        }) {}
  ~Waiter() {
    if (thread_.joinable()) thread_.join();
  }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;
  bool through() const { return through_; }
  double join() {
    thread_.join();
    return seconds_;
  }

 private:
  std::atomic<bool> through_ = false;
  double seconds_ = -1;
  std::thread thread_;
};

TEST(SaveGate, WithoutASaveNobodyWaits) {
  SaveGate gate(3);
  for (int bucket = 0; bucket < 3; ++bucket) EXPECT_EQ(gate.wait(bucket), 0);
  gate.begin();
  gate.end();
  for (int bucket = 0; bucket < 3; ++bucket) EXPECT_EQ(gate.wait(bucket), 0);
}

TEST(SaveGate, HoldsBackExactlyTheBucketsNotYetRead) {
  SaveGate gate(4);
  gate.begin();
  gate.passed(0);
  gate.passed(2);
  EXPECT_EQ(gate.wait(0), 0);
  EXPECT_EQ(gate.wait(2), 0);
  Waiter first(gate, 1), second(gate, 3);
  give_others_time();
  EXPECT_FALSE(first.through());
  EXPECT_FALSE(second.through());
  gate.passed(3);
  second.join();
  give_others_time();
  EXPECT_FALSE(first.through()) << "another bucket's reading let it through";
  gate.passed(1);
  first.join();
  gate.end();
}

// A thread that comes after the bucket was read has nothing to wait for, so this is tried until one has waited.
TEST(SaveGate, SaysThatAWaitTookTime) {
  double waited = 0;
  for (int attempt = 0; attempt < 100 && waited == 0; ++attempt) {
    SaveGate gate(1);
    gate.begin();
    Waiter waiter(gate, 0);
    give_others_time();
    gate.passed(0);
    waited = waiter.join();
  }
  EXPECT_GT(waited, 0);
}

TEST(SaveGate, EndLetsEverybodyThrough) {
  SaveGate gate(2);
  gate.begin();  // a save that fails at its start passes nothing
  Waiter first(gate, 0), second(gate, 1);
  give_others_time();
  EXPECT_FALSE(first.through() || second.through());
  gate.end();
  first.join();
  second.join();
}

TEST(SaveGate, OneSaveAtATime) {
  SaveGate gate(2);
  gate.begin();
  EXPECT_THROW(gate.begin(), Bug);
  gate.passed(0);
  EXPECT_EQ(gate.wait(0), 0) << "the refused call must not make it pending again";
  gate.end();
  gate.begin();
  Waiter waiter(gate, 0);
  give_others_time();
  EXPECT_FALSE(waiter.through()) << "a second save needs every bucket again";
  gate.end();
}

// The reader sees each bucket as it was when the save began, whatever the writer does meanwhile.
TEST(SaveGate, ReaderNeverSeesAWrite) {
  constexpr int kBuckets = 64, kRounds = 50;
  SaveGate gate(kBuckets);
  std::vector<int> state(kBuckets, 0);
  for (int round = 0; round < kRounds; ++round) {
    gate.begin();
    std::vector<int> seen;
    std::thread reader([&] {
      for (int b = 0; b < kBuckets; ++b) {
        seen.push_back(state[static_cast<std::size_t>(b)]);
        gate.passed(b);
      }
      gate.end();
    });
    for (int b = 0; b < kBuckets; ++b) {
      gate.wait(b);
      ++state[static_cast<std::size_t>(b)];
    }
    reader.join();
    ASSERT_EQ(seen, std::vector<int>(kBuckets, round));
  }
}

}  // namespace
}  // namespace so
