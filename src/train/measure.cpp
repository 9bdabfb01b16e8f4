#include "train/measure.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
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

namespace {

// AdamW by the pool's threads, over state of its own.
class HostAdamW {
 public:
  HostAdamW(Device& device, ThreadPool& pool, DType moments) : pool_(pool), moments_(moments) {
    constexpr std::int64_t element_bytes = 5 * sizeof(float), fewest = std::int64_t{1} << 18,
                           each = std::int64_t{4} << 20;
    elements_ = fewest;
    if (device.kind() != DeviceKind::cpu)
      elements_ =
          std::clamp<std::int64_t>(static_cast<std::int64_t>(available_host_memory().available) / (4 * element_bytes),
                                   fewest, each * std::clamp(pool.size(), 4, 16));
    for (Buffer* buffer : {&master_, &m_, &v_, &gradient_, &weights_}) {
      *buffer =
          device.allocate(MemoryKind::pageable, static_cast<std::size_t>(elements_) * sizeof(float), "measuring AdamW");
      // First touched as the engine's state is.
      pool.parallel_for(elements_, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
        std::memset(static_cast<float*>(buffer->data()) + begin, 0,
                    static_cast<std::size_t>(end - begin) * sizeof(float));
      });
    }
  }

  // Seconds of a pass over all of it, gradient and weight in T.
  template <class T>
  double pass() {
    const auto n = static_cast<std::size_t>(elements_);
    const AdamWState state{static_cast<float*>(master_.data()), moment(m_), moment(v_)};
    const auto start = std::chrono::steady_clock::now();
    adamw_update_parallel(pool_, step_, true, std::span(static_cast<const T*>(gradient_.data()), n), state, state,
                          std::span(static_cast<T*>(weights_.data()), n));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  // That it moves.
  template <class T>
  double bytes() const {
    return static_cast<double>(2 * state_bytes(moments_) + 2 * sizeof(T)) * static_cast<double>(elements_);
  }
  // Bytes/s, in the mean of so long: what others on the machine leave of its bandwidth varies.
  template <class T>
  double rate(double seconds) {
    // Memory that was just taken, or freed by another process, is slow at first.
    pass<T>();
    double spent = 0;
    int passes = 0;
    for (; spent < seconds; ++passes) spent += pass<T>();
    return passes * bytes<T>() / spent;
  }

 private:
  Moments moment(const Buffer& buffer) const {
    return moments_ == DType::bf16 ? Moments(static_cast<bf16*>(buffer.data()))
                                   : Moments(static_cast<float*>(buffer.data()));
  }

  ThreadPool& pool_;
  const DType moments_;
  const AdamWStep step_ = make_adamw_step({}, 1e-5, 0.01, 1);
  std::int64_t elements_ = 0;
  Buffer master_, m_, v_, gradient_, weights_;
};

// Copies that are under way while something else is measured.
class CopiesBeside {
 public:
  // `rate`: bytes/s.
  CopiesBeside(Device& device, const Buffer& to, const Buffer& from, double rate)
      : device_(device), stream_(device.create_stream("measure copies")), to_(to), from_(from), rate_(rate) {}
  // Sees to it that enough of them are enqueued for so many seconds.
  void keep_busy(double seconds) {
    const auto enough = static_cast<std::size_t>(std::ceil(seconds * rate_ / static_cast<double>(part())));
    for (bytes_done(); ends_.size() - done_ < enough;) {
      const std::size_t at = ends_.size() % parts * part();
      stream_->copy(static_cast<std::byte*>(to_.data()) + at, static_cast<const std::byte*>(from_.data()) + at, part());
      ends_.push_back(device_.create_event());
      stream_->record(*ends_.back());
    }
  }
  double bytes_done() {
    while (done_ < ends_.size() && ends_[done_]->done()) ++done_;
    return static_cast<double>(done_ * part());
  }
  void synchronize() { stream_->synchronize(); }

 private:
  static constexpr std::size_t parts = 4;
  std::size_t part() const { return to_.bytes() / parts; }

  Device& device_;
  const std::unique_ptr<Stream> stream_;
  const Buffer &to_, &from_;
  const double rate_;
  std::vector<std::unique_ptr<Event>> ends_;
  std::size_t done_ = 0;
};

// Bytes/s that the host's memory moves when AdamW and copies both ways, through pinned memory like the engine's staging
// rings, are at it at once.
double measure_host_memory(Device& device, HostAdamW& adamw, const MachineRates& rates, double seconds) {
  constexpr std::size_t bytes = std::size_t{64} << 20;
  std::array<Buffer, 2> host, here;
  for (Buffer& buffer : host) buffer = device.allocate(MemoryKind::pinned, bytes, "measuring copies");
  for (Buffer& buffer : here) buffer = device.allocate(MemoryKind::device, bytes, "measuring copies");
  for (const Buffer& buffer : host) std::memset(buffer.data(), 0, bytes);
  CopiesBeside to_host(device, host[0], here[0], rates.link_to_host),
      to_device(device, here[1], host[1], rates.link_to_device);
  const double alone = adamw.bytes<bf16>() / rates.host_adamw;
  // Copies last beyond the pass that they slow down.
  double moved = 0, spent = 0;
  for (double ahead = 3 * alone; spent < seconds;) {
    for (CopiesBeside* copies : {&to_host, &to_device}) copies->keep_busy(ahead);
    const double before = to_host.bytes_done() + to_device.bytes_done(), pass = adamw.pass<bf16>();
    moved += adamw.bytes<bf16>() + to_host.bytes_done() + to_device.bytes_done() - before;
    spent += pass;
    ahead = std::max(ahead, 2 * pass);
  }
  for (CopiesBeside* copies : {&to_host, &to_device}) copies->synchronize();
  return moved / spent;
}

// Seconds from a small kernel to the next, all of them enqueued before the first begins: the device has copies of
// `copy_seconds` each to do until then.
double measure_kernel(Device& device, Ops& ops, Stream& stream, const Buffer& to, const Buffer& from,
                      double copy_seconds) {
  constexpr int kernels = 200;
  constexpr double to_enqueue = 20e-6;  // a kernel, at most
  const Tensor wide(from.data(), DType::f32, {1024}), narrow(to.data(), DType::bf16, {1024});
  const auto begin = device.create_event(Timing::on), end = device.create_event(Timing::on);
  const auto copies = device.kind() == DeviceKind::cpu ? 1 : static_cast<int>(kernels * to_enqueue / copy_seconds) + 1;
  std::vector<double> seconds;
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < copies; ++i) stream.copy(to.data(), from.data(), to.bytes());
    stream.record(*begin);
    for (int i = 0; i < kernels; ++i) ops.cast(stream, narrow, wide);
    stream.record(*end);
    stream.synchronize();
    if (round > 0) seconds.push_back(end->seconds_since(*begin) / kernels);  // the first loads it
  }
  return median(std::move(seconds));
}

}  // namespace

MachineRates measure_rates(Device& device, Ops& ops, Stream& stream, ThreadPool& pool, DType compute, DType moments) {
  const bool cpu = device.kind() == DeviceKind::cpu;
  MachineRates rates;
  rates.gemm_flops = measure_gemm_rate(device, ops, stream, compute, cpu);
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
  rates.kernel_seconds =
      measure_kernel(device, ops, stream, to, from, 2 * static_cast<double>(large) / rates.device_memory);
  HostAdamW adamw(device, pool, moments);
  const double host_seconds = cpu ? 0.005 : 0.3;
  rates.host_adamw = adamw.rate<bf16>(host_seconds);
  rates.host_adamw_wide = adamw.rate<float>(host_seconds);
  rates.host_memory = cpu ? rates.host_adamw : measure_host_memory(device, adamw, rates, host_seconds);
  return rates;
}

}  // namespace so
