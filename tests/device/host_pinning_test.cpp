// Host memory is taken in the first way that a driver allows, and copied as that way asks for.
#include "device/host_pinning.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "base/log.h"
#include "device/fake_driver.h"
#include "support/device_rig.h"
#include "support/errors.h"

namespace so::test {
namespace {

using Way = HostPinning::Way;
constexpr std::size_t mib = std::size_t{1} << 20, large_block = 600 * mib;  // pages that nobody touches are no memory

// What is logged meanwhile.
class LoggedPinning {
 public:
  LoggedPinning() {
    set_log_sink([this](LogLevel, std::string_view text) {
      lines.emplace_back(text);
      return std::string();
    });
  }
  ~LoggedPinning() { set_log_sink({}); }
  std::vector<std::string> lines;
};

TEST(HostPinning, PinsABlockWholeWhereTheDriverDoes) {
  FakeDriver driver;
  LoggedPinning log;
  {
    HostPinning pinning(driver.calls());
    std::size_t touched = 0;
    void* const data = pinning.take(large_block, [&](void*, std::size_t bytes) { touched += bytes; });
    EXPECT_EQ(pinning.way_of(data), Way::whole);
    EXPECT_EQ(driver.pinned_blocks(), 1u);
    EXPECT_EQ(driver.pinned(), large_block) << "no more than was asked for";
    EXPECT_EQ(touched, large_block);
    EXPECT_EQ(pinning.mapped(data), data);
    EXPECT_TRUE(pinning.plain());
    EXPECT_EQ(pinning.stretch(data, large_block).bytes, large_block);
    pinning.give_back(data);
    EXPECT_TRUE(driver.idle());
  }
  EXPECT_TRUE(log.lines.empty()) << "that is as it should be";
}

TEST(HostPinning, PinsPiecesOfWhatIsTooLargeAtOnce) {
  FakeDriver driver;
  driver.most_at_once = HostPinning::piece_bytes;
  LoggedPinning log;
  HostPinning pinning(driver.calls());
  auto* const data = static_cast<std::byte*>(pinning.take(large_block, {}));
  EXPECT_EQ(pinning.way_of(data), Way::pieces);
  EXPECT_EQ(driver.pinned_blocks(), 3u);
  EXPECT_EQ(driver.pinned(), large_block);
  EXPECT_FALSE(pinning.plain());
  EXPECT_EQ(pinning.mapped(data), data);
  // No copy crosses a border.
  const auto stretch = [&](std::size_t at, std::size_t bytes) {
    const HostPinning::Stretch s = pinning.stretch(data + at, bytes);
    EXPECT_FALSE(s.staged);
    return s.bytes;
  };
  EXPECT_EQ(stretch(0, large_block), 256 * mib);
  EXPECT_EQ(stretch(256 * mib - 1, 2), 1u);
  EXPECT_EQ(stretch(256 * mib, 300 * mib), 256 * mib);
  EXPECT_EQ(stretch(512 * mib, 88 * mib), 88 * mib);
  EXPECT_EQ(stretch(large_block - 5, 5), 5u);
  int elsewhere = 0;
  EXPECT_EQ(pinning.stretch(&elsewhere, 4).bytes, 4u);
  // A small block is whole, and what was said is not said again.
  void* const small = pinning.take(4096, {});
  EXPECT_EQ(pinning.way_of(small), Way::whole);
  void* const again = pinning.take(large_block, {});
  ASSERT_EQ(log.lines.size(), 1u);
  expect_in(log.lines[0], {"629.1 MB", "invalid argument", "in pieces of 268.4 MB", "costs"});
  for (void* block : {static_cast<void*>(data), small, again}) pinning.give_back(block);
  EXPECT_TRUE(driver.idle());
}

TEST(HostPinning, APieceThatIsRefusedTakesTheOthersBack) {
  FakeDriver driver;
  driver.most_at_once = HostPinning::piece_bytes;
  driver.most_in_all = 2 * HostPinning::piece_bytes;
  LoggedPinning log;
  HostPinning pinning(driver.calls());
  std::size_t touched = 0;
  void* const data = pinning.take(large_block, [&](void*, std::size_t bytes) { touched += bytes; });
  EXPECT_EQ(pinning.way_of(data), Way::allocated);
  EXPECT_EQ(driver.pinned_blocks(), 0u);
  EXPECT_EQ(driver.allocated(), large_block);
  EXPECT_EQ(touched, 2 * large_block) << "the pages that are taken are written";
  EXPECT_EQ(pinning.stretch(data, large_block).bytes, large_block);
  EXPECT_EQ(pinning.mapped(data), data);
  ASSERT_EQ(log.lines.size(), 1u);
  expect_in(log.lines[0], {"the program's own pages", "invalid argument", "takes longer"});
  pinning.give_back(data);
  EXPECT_TRUE(driver.idle());
}

TEST(HostPinning, WhatCannotBePinnedAtAllIsStaged) {
  FakeDriver driver;
  driver.most_in_all = 0;
  driver.most_allocated = 64 * mib;
  LoggedPinning log;
  {
    HostPinning pinning(driver.calls());
    void* const data = pinning.take(large_block, {});
    EXPECT_EQ(pinning.way_of(data), Way::staged);
    EXPECT_EQ(pinning.mapped(data), nullptr);
    EXPECT_TRUE(pinning.stretch(data, large_block).staged);
    EXPECT_EQ(driver.allocated(), 64 * mib) << "blocks that copies pass through";
    void* const other = pinning.take(large_block, {});
    EXPECT_EQ(driver.allocated(), 64 * mib) << "once";
    void* const small = pinning.take(mib, {});
    EXPECT_EQ(pinning.way_of(small), Way::allocated) << "each block has the best way that there is";
    ASSERT_EQ(log.lines.size(), 1u);
    expect_in(log.lines[0], {"cannot pin 629.1 MB", "no pages", "blocks of 1.0 MB", "several times as slow"});
    for (void* block : {data, other, small}) pinning.give_back(block);
  }
  EXPECT_TRUE(driver.idle());
}

TEST(HostPinning, ADriverThatPinsLittleHasSmallBlocksAndOneThatPinsNothingIsRefused) {
  FakeDriver driver;
  driver.most_in_all = 0;
  driver.most_allocated = 10 * mib;
  LoggedPinning log;
  {
    HostPinning pinning(driver.calls());
    pinning.give_back(pinning.take(large_block, {}));
    EXPECT_EQ(driver.allocated(), 8 * mib);
  }
  driver.most_allocated = 0;
  HostPinning pinning(driver.calls());
  expect_in(refusal([&] { pinning.take(large_block, {}); }), {"pins no host memory", "no pages", "--device cpu"});
}

// As under WSL, where the driver chooses the addresses on the device.
TEST(HostPinning, PiecesThatLieApartOnTheDeviceAreNotMapped) {
  FakeDriver driver;
  driver.most_at_once = HostPinning::piece_bytes;
  driver.window = 64 * mib;
  LoggedPinning log;
  HostPinning pinning(driver.calls());
  void *const apart = pinning.take(large_block, {}), *const small = pinning.take(4096, {});
  EXPECT_EQ(pinning.mapped(apart), nullptr);
  EXPECT_NE(pinning.mapped(small), nullptr);
  EXPECT_NE(pinning.mapped(small), small) << "the device's address, not the host's";
  for (void* block : {apart, small}) pinning.give_back(block);
}

// The verbs of a stream that copies so.
class StagedStream {
 public:
  StagedStream(Device& device, HostPinning& pinning) : stream_(device.create_stream("staged")), copies_(pinning) {}
  ~StagedStream() { stream_->synchronize(); }
  Stream& operator*() const { return *stream_; }
  void copy(void* to, const void* from, std::size_t bytes) { copies_.copy(to, from, bytes, verbs()); }
  void zero(void* to, std::size_t bytes) { copies_.zero(to, bytes, verbs()); }

 private:
  PinnedCopies::Verbs verbs() {
    return {.copy = [this](void* to, const void* from, std::size_t bytes) { stream_->copy(to, from, bytes); },
            .zero = [this](void* to, std::size_t bytes) { stream_->zero(to, bytes); },
            .host = [this](std::function<void()> work) { stream_->host("stage", std::move(work)); }};
  }
  const std::unique_ptr<Stream> stream_;
  PinnedCopies copies_;
};

class StagedCopies : public ::testing::Test {
 protected:
  static constexpr std::size_t count = (3 * mib + 1236) / sizeof(int);  // no whole number of blocks
  StagedCopies() {
    driver_.most_in_all = 0;
    driver_.most_allocated = 64 * mib;
    // Blocks too large to be allocated are staged; their first bytes are used.
    for (int*& values : here_) values = static_cast<int*>(pinning_->take(large_block, {}));
    there_ = rig_.device().allocate(MemoryKind::device, count * sizeof(int), "there");
  }
  ~StagedCopies() override {
    for (int* values : here_) pinning_->give_back(values);
  }

  FakeDriver driver_;
  LoggedPinning log_;
  DeviceRig rig_;
  std::unique_ptr<HostPinning> pinning_ = std::make_unique<HostPinning>(driver_.calls());
  std::array<int*, 4> here_{};
  Buffer there_;
};

TEST_F(StagedCopies, GoBothWaysInTheStreamsOrder) {
  SO_CPU_ONLY("a GPU has its own tests, of its driver");
  StagedStream stream(rig_.device(), *pinning_);
  int* const values = here_[0];
  std::iota(values, values + count, 0);
  for (int round = 0; round < 3; ++round) {
    stream.copy(there_.data(), values, count * sizeof(int));
    (*stream).host("forget", [=] { std::fill_n(values, count, -1); });
    stream.copy(values, there_.data(), count * sizeof(int));
    (*stream).host("add", [=] {
      for (std::size_t i = 0; i < count; ++i) ++values[i];
    });
  }
  stream.copy(here_[1], values, count * sizeof(int));  // from staged to staged
  stream.zero(values + 5, 1000);
  stream.zero(there_.data(), 16);
  (*stream).synchronize();
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(here_[1][i], static_cast<int>(i) + 3) << i;
    ASSERT_EQ(values[i], i >= 5 && i < 255 ? 0 : static_cast<int>(i) + 3) << i;
  }
  EXPECT_EQ(static_cast<const int*>(there_.data())[3], 0);
}

TEST_F(StagedCopies, AreEnqueuedAndReturn) {
  SO_CPU_ONLY("a GPU has its own tests, of its driver");
  StagedStream stream(rig_.device(), *pinning_);
  std::atomic<bool> open = false;
  (*stream).host("gate", [&] {
    while (!open) std::this_thread::yield();
  });
  std::fill_n(here_[0], count, 1);
  stream.copy(there_.data(), here_[0], count * sizeof(int));
  stream.copy(here_[1], there_.data(), count * sizeof(int));
  std::fill_n(here_[0], count, 2);  // before the copy has run
  EXPECT_EQ(here_[1][0], 0);
  open = true;
  (*stream).synchronize();
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(here_[1][i], 2) << i;
}

// Each stream has a block of its own.
TEST_F(StagedCopies, OfTwoStreamsGoAtOnce) {
  SO_CPU_ONLY("a GPU has its own tests, of its driver");
  const Buffer second = rig_.device().allocate(MemoryKind::device, count * sizeof(int), "second");
  std::fill_n(here_[0], count, 3);
  std::fill_n(here_[1], count, 4);
  for (int round = 0; round < 10; ++round) {
    StagedStream a(rig_.device(), *pinning_), b(rig_.device(), *pinning_);
    std::fill_n(here_[2], count, 0);
    std::fill_n(here_[3], count, 0);
    a.copy(there_.data(), here_[0], count * sizeof(int));
    b.copy(second.data(), here_[1], count * sizeof(int));
    a.copy(here_[2], there_.data(), count * sizeof(int));
    b.copy(here_[3], second.data(), count * sizeof(int));
    (*a).synchronize();
    (*b).synchronize();
    ASSERT_TRUE(std::equal(here_[0], here_[0] + count, here_[2]));
    ASSERT_TRUE(std::equal(here_[1], here_[1] + count, here_[3]));
  }
  // A stream that is gone has given its block back: there are 64, and more streams have been here.
  for (int i = 0; i < 100; ++i) StagedStream(rig_.device(), *pinning_).copy(there_.data(), here_[0], 4);
}

}  // namespace
}  // namespace so::test
