#include "plan/machine/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/backend.h"
#include "ops/fp8_layout.h"
#include "ops/ops.h"
#include "optim/engine_ops.h"
#include "plan/machine/measure_host.h"

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
  const Backend::Probe& probe = backend_of(device).probe;
  const std::int64_t side = quick ? probe.brief_gemm_side : probe.gemm_side;
  const std::size_t bytes = static_cast<std::size_t>(side * side) * size_of(dtype);
  const Buffer memory = device.allocate(MemoryKind::device, 3 * bytes, "measuring matrix products");
  const auto matrix = [&](std::size_t i) {
    return Tensor(static_cast<std::byte*>(memory.data()) + i * bytes, dtype, {side, side});
  };
  ops.random_normal(stream, matrix(1), 1, 1.0f);
  ops.random_normal(stream, matrix(2), 2, 1.0f);
  const double seconds = seconds_per_call(
      stream,
      [&](std::int64_t) { ops.linear(stream, matrix(0), matrix(1), matrix(2), Tensor(), Accumulate::overwrite); },
      quick ? probe.brief_gemm_seconds : probe.gemm_seconds, quick ? 3 : 5);
  const auto n = static_cast<double>(side);
  return 2 * n * n * n / seconds;
}

double measure_fp8_rate(Device& device, Ops& ops, Stream& stream) {
  const Backend::Probe& probe = backend_of(device).probe;
  const std::int64_t side = probe.gemm_side;
  SO_CHECK(side % fp8_block == 0, "a product of {} in FP8", side);
  std::vector<Buffer> memory;
  const auto tensor = [&](DType dtype, std::int64_t rows, std::int64_t columns) {
    const std::size_t bytes = static_cast<std::size_t>(rows * columns) * size_of(dtype);
    memory.push_back(device.allocate(MemoryKind::device, bytes, "measuring products in FP8"));
    return Tensor(memory.back().data(), dtype, {rows, columns});
  };
  const Tensor out = tensor(DType::bf16, side, side);
  const Fp8Matrix a = make_fp8_matrix(Fp8Matrix::Blocks::rows, side, side, tensor),
                  b = make_fp8_matrix(Fp8Matrix::Blocks::squares, side, side, tensor);
  for (const Fp8Matrix& matrix : {a, b}) {
    ops.random_normal(stream, out, matrix.blocks == Fp8Matrix::Blocks::rows ? 1 : 2,
                      1.0f);  // rounded, then written over
    ops.fp8_quantise(stream, matrix, {}, out);
  }
  const double seconds = seconds_per_call(
      stream, [&](std::int64_t) { ops.fp8_product(stream, out, a, b, Tensor(), Accumulate::overwrite); },
      probe.gemm_seconds, 5);
  const auto n = static_cast<double>(side);
  return 2 * n * n * n / seconds;
}

double measure_copy_bandwidth(Device& device, Stream& stream) {
  const std::size_t bytes = backend_of(device).probe.copy_bytes;
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

// Seconds from a small kernel to the next, all of them enqueued before the first begins: the device has copies of
// `copy_seconds` each to do until then.
double measure_kernel(Device& device, Stream& stream, const Buffer& to, const Buffer& from, double copy_seconds) {
  constexpr int kernels = 200;
  constexpr double to_enqueue = 20e-6;  // a kernel, at most
  const auto ops = make_engine_ops(device);
  const Tensor wide(from.data(), DType::f32, {1024}), narrow(to.data(), DType::bf16, {1024});
  const auto begin = device.create_event(Timing::on), end = device.create_event(Timing::on);
  const auto copies = backend_of(device).probe.brief ? 1 : static_cast<int>(kernels * to_enqueue / copy_seconds) + 1;
  std::vector<double> seconds;
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < copies; ++i) stream.copy(to.data(), from.data(), to.bytes());
    stream.record(*begin);
    for (int i = 0; i < kernels; ++i) ops->cast(stream, narrow, wide);
    stream.record(*end);
    stream.synchronize();
    if (round > 0) seconds.push_back(end->seconds_since(*begin) / kernels);  // the first loads it
  }
  return median(std::move(seconds));
}

}  // namespace

MachineRates measure_rates(Device& device, Ops& ops, Stream& stream, ThreadPool& pool, const NumberFormats& formats,
                           std::size_t most_host_bytes) {
  const Backend::Probe& probe = backend_of(device).probe;
  MachineRates rates;
  rates.gemm_flops = measure_gemm_rate(device, ops, stream, formats.activations, probe.brief);
  const std::size_t bytes = probe.link_bytes;
  const double round_seconds = probe.round_seconds;
  const Buffer host = device.allocate(MemoryKind::pinned, bytes, "measuring copies");
  const Buffer here = device.allocate(MemoryKind::device, bytes, "measuring copies");
  std::memset(host.data(), 0, bytes);
  rates.link_to_device = copy_rate(stream, here, host, round_seconds);
  rates.link_to_host = copy_rate(stream, host, here, round_seconds);
  const std::size_t large = probe.memory_bytes;
  const Buffer from = device.allocate(MemoryKind::device, large, "measuring copies");
  const Buffer to = device.allocate(MemoryKind::device, large, "measuring copies");
  stream.zero(from.data(), large);
  rates.device_memory = 2 * copy_rate(stream, to, from, round_seconds);
  rates.kernel_seconds = measure_kernel(device, stream, to, from, 2 * static_cast<double>(large) / rates.device_memory);
  const HostRates of_host =
      measure_host(device, pool, formats.moments, most_host_bytes, rates.link_to_host, rates.link_to_device);
  rates.host_adamw = of_host.adamw;
  rates.host_adamw_wide = of_host.adamw_wide;
  rates.host_memory = of_host.memory;
  rates.adamw = of_host.tuning;
  return rates;
}

}  // namespace so
