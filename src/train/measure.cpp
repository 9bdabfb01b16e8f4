#include "train/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "offload/optimizer_state.h"
#include "optim/adamw.h"
#include "plan/host_memory.h"

namespace so {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

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
  return median(std::move(seconds));
}

double measure_gemm_rate(Device& device, Ops& ops, Stream& stream, DType dtype, bool quick) {
  const bool cpu = device.kind() == DeviceKind::cpu;
  const std::int64_t side = cpu ? (quick ? 256 : 1024) : 8192;
  const std::size_t bytes = static_cast<std::size_t>(side * side) * size_of(dtype);
  const Buffer memory = device.allocate(MemoryKind::device, 3 * bytes, "measuring matrix products");
  const auto matrix = [&](std::size_t i) {
    return Tensor(static_cast<std::byte*>(memory.data()) + i * bytes, dtype, {side, side});
  };
  ops.random_normal(stream, matrix(1), 1, 1.0f);
  ops.random_normal(stream, matrix(2), 2, 1.0f);
  // If not quick, long enough for a chip to come to the clock that it can keep.
  const double seconds = seconds_per_call(
      stream,
      [&](std::int64_t) { ops.linear(stream, matrix(0), matrix(1), matrix(2), Tensor(), Accumulate::overwrite); },
      quick ? (cpu ? 0.002 : 0.02) : (cpu ? 0.02 : 0.15), quick ? 3 : 5);
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

namespace {

// Bytes/s of copies from `from` to `to` in the stream's order.
double copy_rate(Stream& stream, const Buffer& to, const Buffer& from, double round_seconds) {
  const double seconds = seconds_per_call(
      stream, [&](std::int64_t) { stream.copy(to.data(), from.data(), to.bytes()); }, round_seconds, 3);
  return static_cast<double>(to.bytes()) / seconds;
}

}  // namespace

HostRates measure_host_adamw(Device& device, ThreadPool& pool, DType moments) {
  constexpr std::int64_t element_bytes = 5 * sizeof(float);
  std::int64_t elements = std::int64_t{1} << 18;
  if (device.kind() != DeviceKind::cpu)
    elements =
        std::clamp<std::int64_t>(static_cast<std::int64_t>(available_host_memory().available) / (4 * element_bytes),
                                 elements, 4 * (std::int64_t{16} << 20));
  const auto n = static_cast<std::size_t>(elements);
  const auto allocate = [&] {
    Buffer buffer = device.allocate(MemoryKind::pageable, n * sizeof(float), "measuring AdamW");
    // First touched as the engine's state is.
    pool.parallel_for(elements, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      std::memset(static_cast<float*>(buffer.data()) + begin, 0, static_cast<std::size_t>(end - begin) * sizeof(float));
    });
    return buffer;
  };
  const Buffer master = allocate(), m = allocate(), v = allocate(), gradient = allocate(), weights = allocate();
  const AdamWStep step = make_adamw_step({}, 1e-5, 0.01, 1);
  const auto moment = [&](const Buffer& buffer) {
    return moments == DType::bf16 ? Moments(static_cast<bf16*>(buffer.data()))
                                  : Moments(static_cast<float*>(buffer.data()));
  };
  const AdamWState state{static_cast<float*>(master.data()), moment(m), moment(v)};
  // Bytes/s with gradient and weight in T.
  const auto rate = [&]<class T>() {
    const auto pass = [&] {
      const auto start = std::chrono::steady_clock::now();
      adamw_update_parallel(pool, step, true, std::span(static_cast<const T*>(gradient.data()), n), state, state,
                            std::span(static_cast<T*>(weights.data()), n));
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    // Memory that was just taken, or freed by another process, is slow at first; and what others on the machine leave
    // of its bandwidth varies.
    pass();
    std::vector<double> seconds(5);
    for (double& s : seconds) s = pass();
    return static_cast<double>((2 * state_bytes(moments) + 2 * sizeof(T)) * n) / median(std::move(seconds));
  };
  return {.narrow = rate.operator()<bf16>(), .wide = rate.operator()<float>()};
}

MachineRates measure_rates(Device& device, Ops& ops, Stream& stream, ThreadPool& pool, DType compute, DType moments) {
  const bool cpu = device.kind() == DeviceKind::cpu;
  MachineRates rates;
  rates.gemm_flops = measure_gemm_rate(device, ops, stream, compute, cpu);
  const HostRates adamw = measure_host_adamw(device, pool, moments);
  rates.host_memory = adamw.narrow;
  rates.host_wide = adamw.wide;
  const std::size_t bytes = std::size_t{cpu ? 1u : 64u} << 20;
  const double round_seconds = cpu ? 0.001 : 0.01;
  const Buffer host = device.allocate(MemoryKind::pinned, bytes, "measuring copies");
  const Buffer here = device.allocate(MemoryKind::device, bytes, "measuring copies");
  std::memset(host.data(), 0, bytes);
  rates.link_to_device = copy_rate(stream, here, host, round_seconds);
  rates.link_to_host = copy_rate(stream, host, here, round_seconds);
  // Well above a GPU's cache.
  const std::size_t large = std::size_t{cpu ? 1u : 256u} << 20;
  const Buffer from = device.allocate(MemoryKind::device, large, "measuring copies");
  const Buffer to = device.allocate(MemoryKind::device, large, "measuring copies");
  stream.zero(from.data(), large);
  rates.device_memory = 2 * copy_rate(stream, to, from, round_seconds);
  return rates;
}

}  // namespace so
