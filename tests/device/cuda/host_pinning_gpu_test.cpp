// A GPU works with host memory that is pinned in each of the ways, whichever its driver refuses.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "base/log.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/rows.h"
#include "support/on_gpu.h"

namespace so::test {
namespace {

using Way = HostPinning::Way;
constexpr std::size_t gpu_block = std::size_t{600} << 20, gpu_values = gpu_block / sizeof(float);

// The driver's calls, of which some refuse so that no better way is left than this one.
PinningCalls no_better_than(Way way) {
  PinningCalls calls = cuda_pinning_calls();
  const auto pin = calls.pin;
  const auto allocate = calls.allocate;
  if (way == Way::pieces)
    calls.pin = [pin](void* data, std::size_t bytes) {
      return bytes > HostPinning::piece_bytes ? "refused by the test" : pin(data, bytes);
    };
  if (way >= Way::allocated) calls.pin = [](void*, std::size_t) { return "refused by the test"; };
  if (way == Way::staged)
    calls.allocate = [allocate](std::size_t bytes, std::string& reason) -> void* {
      if (bytes <= std::size_t{64} << 20) return allocate(bytes, reason);
      reason = "refused by the test";
      return nullptr;
    };
  return calls;
}

class PinnedOnGpu : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (!on_gpu()) GTEST_SKIP() << "on a GPU only: its driver pins";
    set_log_sink([this](LogLevel, std::string_view text) {
      lines_.emplace_back(text);
      return std::string();
    });
    device_ = make_cuda_device(0, no_better_than(GetParam()));
  }
  void TearDown() override { set_log_sink({}); }
  Buffer pinned(const char* name) { return device_->allocate(MemoryKind::pinned, gpu_block, name); }
  static float* values(const Buffer& buffer) { return static_cast<float*>(buffer.data()); }

  std::vector<std::string> lines_;
  std::unique_ptr<Device> device_;
};

// Both ways across the borders of pieces, in order with kernels and host work.
TEST_P(PinnedOnGpu, CopiesInOrderWithKernelsAndHostWork) {
  constexpr std::int64_t width = 1024, rows = static_cast<std::int64_t>(gpu_values) / width;
  const Buffer here = pinned("here"), back = pinned("back"),
               there = device_->allocate(MemoryKind::device, gpu_block, "there"),
               turned = device_->allocate(MemoryKind::device, gpu_block, "turned"),
               order = device_->allocate(MemoryKind::device, rows * sizeof(std::int32_t), "order"),
               numbers = device_->allocate(MemoryKind::pinned, order.bytes(), "numbers");
  const auto value = [](std::size_t i) { return static_cast<float>(i % 1'000'003); };
  for (std::size_t i = 0; i < gpu_values; ++i) values(here)[i] = value(i);
  for (std::int64_t row = 0; row < rows; ++row)
    static_cast<std::int32_t*>(numbers.data())[row] = static_cast<std::int32_t>(rows - 1 - row);
  const auto stream = device_->create_stream("a");
  stream->copy(order.data(), numbers.data(), order.bytes());
  const auto turn = [&](const Buffer& to, const Buffer& from) {  // a kernel between copies
    take_rows(cuda_stream(*stream), Tensor(to.data(), DType::f32, {rows, width}),
              Tensor(from.data(), DType::f32, {rows, width}), Tensor(order.data(), DType::i32, {rows}));
  };
  const std::size_t border = HostPinning::piece_bytes / sizeof(float);
  for (int round = 0; round < 3; ++round) {
    stream->copy(there.data(), here.data(), gpu_block);
    turn(turned, there);
    stream->copy(back.data(), turned.data(), gpu_block);
    stream->host("use", [&] { std::swap(values(back)[border], values(back)[border - 1]); });
    // Ends that are no multiples of anything, around a border.
    stream->copy(static_cast<float*>(turned.data()) + border - 3, values(back) + border - 3, 7 * sizeof(float));
    turn(there, turned);
    stream->copy(values(here) + 1, static_cast<float*>(there.data()) + 1, gpu_block - 2 * sizeof(float));
    stream->zero(values(back) + 2 * border - 2, 4 * sizeof(float));
    stream->synchronize();
    for (std::size_t i = 2 * border - 2; i < 2 * border + 2; ++i) EXPECT_EQ(values(back)[i], 0);
    // What was swapped there has come back turned once more; swap it again, and all is as it was.
    const auto turned_place = [&](std::size_t i) {
      return (static_cast<std::size_t>(rows) - 1 - i / width) * width + i % width;
    };
    std::swap(values(here)[turned_place(border)], values(here)[turned_place(border - 1)]);
    std::size_t same = 0;
    while (same < gpu_values && values(here)[same] == value(same)) ++same;
    ASSERT_EQ(same, gpu_values);
  }
  if (GetParam() == Way::whole)
    EXPECT_TRUE(lines_.empty());
  else
    EXPECT_EQ(lines_.size(), 1u) << "one line says which way was taken";
}

TEST_P(PinnedOnGpu, TwoStreamsCopyAtOnce) {
  const Buffer a_here = pinned("a"), b_here = pinned("b"),
               a_there = device_->allocate(MemoryKind::device, gpu_block, "a there"),
               b_there = device_->allocate(MemoryKind::device, gpu_block, "b there");
  std::memset(a_here.data(), 1, gpu_block);
  std::memset(b_here.data(), 2, gpu_block);
  const auto a = device_->create_stream("a"), b = device_->create_stream("b");
  for (int round = 0; round < 2; ++round) {
    a->copy(a_there.data(), a_here.data(), gpu_block);
    b->copy(b_there.data(), b_here.data(), gpu_block);
    a->copy(a_here.data(), a_there.data(), gpu_block);
    b->copy(b_here.data(), b_there.data(), gpu_block);
  }
  a->synchronize();
  b->synchronize();
  const auto all_are = [](const Buffer& buffer, int byte) {
    const auto* const bytes = static_cast<const unsigned char*>(buffer.data());
    return bytes[0] == byte && std::memcmp(bytes, bytes + 1, gpu_block - 1) == 0;
  };
  EXPECT_TRUE(all_are(a_here, 1));
  EXPECT_TRUE(all_are(b_here, 2));
}

TEST_P(PinnedOnGpu, ACopyIsEnqueuedAndReturns) {
  // A staged copy has host functions, and behind a gate that only its caller opens their enqueueing never returned on
  // an H200, whatever the size.
  if (GetParam() == Way::staged) GTEST_SKIP() << "a staged copy may wait for its stream (host_pinning.h)";
  const Buffer here = pinned("here"), there = device_->allocate(MemoryKind::device, gpu_block, "there");
  std::memset(here.data(), 0, gpu_block);
  const auto stream = device_->create_stream("a");
  const auto done = device_->create_event();
  std::atomic<bool> open = false;
  stream->await("gate", [&] {
    while (!open) std::this_thread::yield();
  });
  stream->copy(there.data(), here.data(), gpu_block);
  stream->copy(here.data(), there.data(), gpu_block);
  stream->record(*done);
  EXPECT_FALSE(done->done());
  values(here)[7] = 5;
  open = true;
  done->synchronize();
  EXPECT_EQ(values(here)[7], 5);
  stream->synchronize();
}

// A kernel reads what is mapped, across a border too.
TEST_P(PinnedOnGpu, AKernelReachesWhatIsMapped) {
  const Buffer here = pinned("here");
  void* const mapped = device_->mapped(here);
  EXPECT_EQ(mapped == nullptr, GetParam() == Way::staged);
  if (mapped == nullptr) return;
  constexpr std::int64_t few = 1000;
  const std::size_t at = HostPinning::piece_bytes / sizeof(float) - few / 2;
  std::iota(values(here) + at, values(here) + at + few, 3.0f);
  std::int32_t* const first = static_cast<std::int32_t*>(here.data());
  *first = 0;
  const Buffer there = device_->allocate(MemoryKind::device, few * sizeof(float), "there"),
               back = device_->allocate(MemoryKind::pinned, there.bytes(), "back");
  const auto stream = device_->create_stream("a");
  take_rows(cuda_stream(*stream), Tensor(there.data(), DType::f32, {1, few}),
            Tensor(static_cast<float*>(mapped) + at, DType::f32, {1, few}), Tensor(mapped, DType::i32, {1}));
  stream->copy(back.data(), there.data(), there.bytes());
  stream->synchronize();
  EXPECT_EQ(std::memcmp(back.data(), values(here) + at, back.bytes()), 0);
}

// The same addresses come again, and a driver refuses to pin what it has pinned. No error is left for the next call.
TEST_P(PinnedOnGpu, GivesBackWhatItTook) {
  for (int i = 0; i < 20; ++i) {
    const Buffer here = pinned("here");
    values(here)[0] = 1;
  }
  EXPECT_EQ(lines_.size(), GetParam() == Way::whole ? 0u : 1u);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

std::string way_name(const testing::TestParamInfo<Way>& tested) {
  constexpr std::array names{"Whole", "Pieces", "Allocated", "Staged"};
  return names.at(static_cast<std::size_t>(tested.param));
}
INSTANTIATE_TEST_SUITE_P(Ways, PinnedOnGpu, testing::Values(Way::whole, Way::pieces, Way::allocated, Way::staged),
                         way_name);

}  // namespace
}  // namespace so::test
