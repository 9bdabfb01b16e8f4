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
    constexpr std::int64_t element_bytes = 5 * sizeof(float), fewest = std::int64_t{1} << 18;
    elements_ = fewest;
    if (device.kind() != DeviceKind::cpu)
      elements_ =
          std::clamp<std::int64_t>(static_cast<std::int64_t>(available_host_memory().available) / (4 * element_bytes),
                                   fewest, 4 * (std::int64_t{16} << 20));
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
  // Bytes/s.
  template <class T>
  double rate() {
    // Memory that was just taken, or freed by another process, is slow at first; and what others on the machine leave
    // of its bandwidth varies.
    pass<T>();
    std::vector<double> seconds(5);
    for (double& s : seconds) s = pass<T>();
    return bytes<T>() / median(std::move(seconds));
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
  CopiesBeside(Device& device, const Buffer& to, const Buffer& from)
      : device_(device), stream_(device.create_stream("measure copies")), to_(to), from_(from) {}
  // Enqueues so many, of a part of the buffer each.
  void enqueue(std::int64_t count) {
    const std::size_t bytes = part();
    for (std::int64_t i = 0; i < count; ++i) {
      const std::size_t at = static_cast<std::size_t>(i) % parts * bytes;
      stream_->copy(static_cast<std::byte*>(to_.data()) + at, static_cast<const std::byte*>(from_.data()) + at, bytes);
      ends_.push_back(device_.create_event());
      stream_->record(*ends_.back());
    }
  }
  double bytes_done() {
    while (done_ < ends_.size() && ends_[done_]->done()) ++done_;
    return static_cast<double>(done_ * part());
  }
  bool all_done() const { return done_ == ends_.size(); }
  void synchronize() { stream_->synchronize(); }
  std::size_t part() const { return to_.bytes() / parts; }

 private:
  static constexpr std::size_t parts = 4;
  Device& device_;
  const std::unique_ptr<Stream> stream_;
  const Buffer &to_, &from_;
  std::vector<std::unique_ptr<Event>> ends_;
  std::size_t done_ = 0;
};

// Bytes/s that the host's memory moves when AdamW and copies both ways, through pinned memory like the engine's staging
// rings, are at it at once.
double measure_host_memory(Device& device, HostAdamW& adamw, const MachineRates& rates) {
  constexpr std::size_t bytes = std::size_t{64} << 20;
  constexpr int passes = 4;
  std::array<Buffer, 2> host, here;
  for (Buffer& buffer : host) buffer = device.allocate(MemoryKind::pinned, bytes, "measuring copies");
  for (Buffer& buffer : here) buffer = device.allocate(MemoryKind::device, bytes, "measuring copies");
  for (const Buffer& buffer : host) std::memset(buffer.data(), 0, bytes);
  const double alone = adamw.bytes<bf16>() / rates.host_adamw;
  for (double slower = 2;; slower *= 2) {
    CopiesBeside to_host(device, host[0], here[0]), to_device(device, here[1], host[1]);
    const auto enough = [&](const CopiesBeside& copies, double rate) {
      return 1 + static_cast<std::int64_t>((passes + 1) * slower * alone * rate / static_cast<double>(copies.part()));
    };
    const std::array<CopiesBeside*, 2> both{&to_host, &to_device};
    to_host.enqueue(enough(to_host, rates.link_to_host));
    to_device.enqueue(enough(to_device, rates.link_to_device));
    adamw.pass<bf16>();
    double moved = 0, seconds = 0;
    for (CopiesBeside* copies : both) moved -= copies->bytes_done();
    for (int i = 0; i < passes; ++i) seconds += adamw.pass<bf16>();
    for (CopiesBeside* copies : both) moved += copies->bytes_done();
    const bool over = to_host.all_done() || to_device.all_done();
    for (CopiesBeside* copies : both) copies->synchronize();
    if (!over) return (passes * adamw.bytes<bf16>() + moved) / seconds;
  }
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
  HostAdamW adamw(device, pool, moments);
  rates.host_adamw = adamw.rate<bf16>();
  rates.host_adamw_wide = adamw.rate<float>();
  rates.host_memory = cpu ? rates.host_adamw : measure_host_memory(device, adamw, rates);
  return rates;
}

}  // namespace so
