#include "train/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace so {

double seconds_per_call(Stream& stream, const std::function<void(std::int64_t)>& enqueue, double round_seconds,
                        int rounds) {
  using Clock = std::chrono::steady_clock;
  std::int64_t next = 0;
  const auto run = [&](std::int64_t calls) {
    const auto start = Clock::now();
    for (std::int64_t i = 0; i < calls; ++i) enqueue(next++);
    stream.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  stream.synchronize();
  run(1);
  constexpr std::int64_t most_calls = 1000;  // what a stream takes without making the caller wait
  std::int64_t calls = 1;
  for (double seconds = run(calls); seconds < round_seconds && calls < most_calls; seconds = run(calls))
    calls = std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(1.1 * static_cast<double>(calls) *
                                                                         round_seconds / std::max(seconds, 1e-9))),
                                     calls + 1, most_calls);
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) seconds.push_back(run(calls) / static_cast<double>(calls));
  std::nth_element(seconds.begin(), seconds.begin() + rounds / 2, seconds.end());
  return seconds[static_cast<std::size_t>(rounds / 2)];
}

double measure_gemm_rate(Device& device, Ops& ops, Stream& stream, DType dtype) {
  const std::int64_t side = device.kind() == DeviceKind::cpu ? 1024 : 8192;
  const std::size_t bytes = static_cast<std::size_t>(side * side) * size_of(dtype);
  const Buffer memory = device.allocate(MemoryKind::device, 3 * bytes, "measuring matrix products");
  const auto matrix = [&](std::size_t i) {
    return Tensor(static_cast<std::byte*>(memory.data()) + i * bytes, dtype, {side, side});
  };
  ops.random_normal(stream, matrix(1), 1, 1.0f);
  ops.random_normal(stream, matrix(2), 2, 1.0f);
  // Long enough for a chip to come to the clock that it can keep.
  const double seconds = seconds_per_call(
      stream,
      [&](std::int64_t) { ops.linear(stream, matrix(0), matrix(1), matrix(2), Tensor(), Accumulate::overwrite); },
      device.kind() == DeviceKind::cpu ? 0.02 : 0.15);
  const auto n = static_cast<double>(side);
  return 2 * n * n * n / seconds;
}

double measure_copy_bandwidth(Device& device, Stream& stream) {
  const std::size_t bytes = std::size_t{device.kind() == DeviceKind::cpu ? 64u : 1024u} << 20;
  const Buffer from = device.allocate(MemoryKind::device, bytes, "measuring copies");
  const Buffer to = device.allocate(MemoryKind::device, bytes, "measuring copies");
  stream.zero(from.data(), bytes);
  return 2 * static_cast<double>(bytes) /
         seconds_per_call(stream, [&](std::int64_t) { stream.copy(to.data(), from.data(), bytes); });
}

}  // namespace so
