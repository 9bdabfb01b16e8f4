#include "plan/machine/measure_host.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "device/backend.h"
#include "offload/memory/optimizer_state.h"
#include "offload/memory/touch.h"
#include "optim/adamw.h"

namespace so {
namespace {

using Clock = std::chrono::steady_clock;

// AdamW by the pool's threads, over state of its own.
class HostAdamW {
 public:
  HostAdamW(Device& device, ThreadPool& pool, DType moments, std::size_t most_bytes)
      : pool_(pool), moments_(moments), elements_(elements_for(device, pool, moments, most_bytes)) {
    const std::size_t moment = size_of(moments);
    for (const auto& [buffer, size] : {std::pair{&master_, sizeof(float)},
                                       {&m_, moment},
                                       {&v_, moment},
                                       {&gradient_, sizeof(float)},
                                       {&weights_, sizeof(float)}})
      *buffer = device.allocate(MemoryKind::pageable, static_cast<std::size_t>(elements_) * size, "measuring AdamW",
                                zeros_by(pool));
    if (moments != DType::u8) return;
    const std::int64_t blocks = elements_ / bucket_elements_ * moment_blocks(bucket_elements_);
    for (Buffer* scales : {&m_scales_, &v_scales_})
      *scales = device.allocate(MemoryKind::pageable, static_cast<std::size_t>(blocks) * sizeof(float),
                                "measuring AdamW", zeros_by(pool));
  }

  // Begins the next bucket's update, gradient and weight in T.
  template <class T>
  ThreadPool::Job begin() {
    const std::int64_t buckets = elements_ / bucket_elements_, from = next_++ % buckets;
    // Half of all lies between what is read and what is written beside it.
    const std::int64_t to = next_ % 2 == 0 ? from : (from + buckets / 2) % buckets;
    const auto n = static_cast<std::size_t>(bucket_elements_);
    return pool_.begin(adamw_update_work(step_, true, std::span(at<const T>(gradient_, from), n), state(from),
                                         state(to), std::span(at<T>(weights_, from), n)));
  }
  // Seconds of the next bucket's update alone.
  template <class T>
  double update() {
    const auto start = Clock::now();
    pool_.finish(begin<T>());
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  // That it moves.
  template <class T>
  double bytes() const {
    return (2 * state_bytes(moments_) + 2 * sizeof(T)) * static_cast<double>(bucket_elements_);
  }
  // Updates that follow one another as the engine's do: each begins while the one before is under way.
  template <class T>
  class Sequence {
   public:
    explicit Sequence(HostAdamW& adamw) : adamw_(adamw), job_(adamw.begin<T>()) {}
    // Seconds until the next one's end, from the last one's.
    double update() {
      ThreadPool::Job next = adamw_.begin<T>();
      adamw_.pool_.finish_in_line(std::exchange(job_, std::move(next)));
      const auto last = std::exchange(end_, Clock::now());
      return std::chrono::duration<double>(end_ - last).count();
    }

   private:
    HostAdamW& adamw_;
    Clock::time_point end_ = Clock::now();
    ThreadPool::Job job_;
  };
  // Bytes/s, in the mean of so long: what others on the machine leave of its bandwidth varies.
  template <class T>
  double rate(double seconds) {
    Sequence<T> sequence(*this);
    double spent = 0;
    int updates = 0;
    for (; spent < seconds; ++updates) spent += sequence.update();
    return updates * bytes<T>() / spent;
  }

  // Bytes that it holds.
  std::size_t memory() const {
    return master_.bytes() + m_.bytes() + v_.bytes() + m_scales_.bytes() + v_scales_.bytes() + gradient_.bytes() +
           weights_.bytes();
  }

 private:
  static constexpr std::int64_t fewest = std::int64_t{1} << 18;

  static std::int64_t elements_for(const Device& device, const ThreadPool& pool, DType moments,
                                   std::size_t most_bytes) {
    if (backend_of(device).probe.brief) return fewest;
    const auto room = static_cast<std::int64_t>(static_cast<double>(most_bytes) /
                                                (state_bytes(moments) + 2 * sizeof(float))),
               enough = (std::int64_t{64} << 20) * std::clamp(pool.size(), 4, 16);
    return std::max(fewest, std::min(room, enough));
  }

  template <class T>
  T* at(const Buffer& buffer, std::int64_t bucket) const {
    return static_cast<T*>(buffer.data()) + bucket * bucket_elements_;
  }
  Moments moment(const Buffer& buffer, const Buffer& scales, std::int64_t bucket) const {
    const auto offset = static_cast<std::size_t>(bucket * bucket_elements_) * size_of(moments_);
    float* const of_blocks =
        scales ? static_cast<float*>(scales.data()) + bucket * moment_blocks(bucket_elements_) : nullptr;
    return Moments::of(moments_, static_cast<std::byte*>(buffer.data()) + offset, of_blocks);
  }
  AdamWState state(std::int64_t bucket) const {
    return {at<float>(master_, bucket), moment(m_, m_scales_, bucket), moment(v_, v_scales_, bucket)};
  }

  ThreadPool& pool_;
  const DType moments_;
  const AdamWStep step_ = make_adamw_step({}, 1e-5, 0.01, 1);
  const std::int64_t elements_;
  // The engine's, where there is that much. Of four or more no two that follow one another share memory.
  const std::int64_t bucket_elements_ = std::min(std::int64_t{4} << 20, elements_ / 4);
  std::int64_t next_ = 0;
  Buffer master_, m_, v_, m_scales_, v_scales_, gradient_, weights_;
};

// Copies that are under way while something else is measured.
class CopiesBeside {
 public:
  static constexpr std::size_t part = std::size_t{16} << 20;  // at a time
  // `rate`: bytes/s. Both memories are taken in turn from their beginning, and are whole parts.
  CopiesBeside(Device& device, const Buffer& to, const Buffer& from, double rate)
      : device_(device), stream_(device.create_stream("measure copies")), to_(to), from_(from), rate_(rate) {}
  // Sees to it that enough of them are enqueued for these seconds.
  void keep_busy(double seconds) {
    const auto enough = static_cast<std::size_t>(std::ceil(seconds * rate_ / static_cast<double>(part)));
    for (bytes_done(); ends_.size() - done_ < enough;) {
      const auto at = [&](const Buffer& memory) {
        return static_cast<std::byte*>(memory.data()) + ends_.size() * part % memory.bytes();
      };
      stream_->copy(at(to_), at(from_), part);
      ends_.push_back(device_.create_event());
      stream_->record(*ends_.back());
    }
  }
  double bytes_done() {
    while (done_ < ends_.size() && ends_[done_]->done()) ++done_;
    return static_cast<double>(done_ * part);
  }
  void synchronize() { stream_->synchronize(); }

 private:
  Device& device_;
  const std::unique_ptr<Stream> stream_;
  const Buffer &to_, &from_;
  const double rate_;
  std::vector<std::unique_ptr<Event>> ends_;
  std::size_t done_ = 0;
};

// Bytes/s of AdamW and copies both ways, at once, through pinned memory as the engine's.
double rate_beside_copies(Device& device, ThreadPool& pool, HostAdamW& adamw, double link_to_host,
                          double link_to_device, double seconds) {
  // More of the host's memory than its caches hold, which copies go through: up to 1 GiB each way, beside 20 GB.
  constexpr std::size_t part = CopiesBeside::part, fewest = 16, most = 64;
  const std::size_t parts = std::clamp(adamw.memory() / 20 / part, fewest, most);
  std::array<Buffer, 2> host, here;
  for (Buffer& buffer : host)
    buffer = device.allocate(MemoryKind::pinned, parts * part, "measuring copies", zeros_by(pool));
  for (Buffer& buffer : here) buffer = device.allocate(MemoryKind::device, fewest * part, "measuring copies");
  CopiesBeside to_host(device, host[0], here[0], link_to_host), to_device(device, here[1], host[1], link_to_device);
  // Copies last beyond the update that they slow down.
  HostAdamW::Sequence<bf16> updates(adamw);
  double moved = 0, copied = 0, spent = 0;
  for (double ahead = 0.01; spent < seconds;) {
    for (CopiesBeside* copies : {&to_host, &to_device}) copies->keep_busy(ahead);
    const double update = updates.update(), until_now = to_host.bytes_done() + to_device.bytes_done();
    moved += adamw.bytes<bf16>() + until_now - std::exchange(copied, until_now);
    spent += update;
    ahead = std::max(ahead, 2 * update);
  }
  for (CopiesBeside* copies : {&to_host, &to_device}) copies->synchronize();
  return moved / spent;
}

// Whether the one is quicker in two rounds of updates that take turns.
bool is_quicker(const AdamWTuning& candidate, const AdamWTuning& best,
                const std::function<double(const AdamWTuning&)>& seconds) {
  constexpr int rounds = 2, updates = 12;
  constexpr double gain = 0.97;
  for (int round = 0; round < rounds; ++round) {
    double theirs = 0, ours = 0;
    for (int i = 0; i < updates; ++i) {
      ours += seconds(candidate);
      theirs += seconds(best);
    }
    if (ours > gain * theirs) return false;
  }
  return true;
}

}  // namespace

AdamWTuning find_tuning(const std::function<double(const AdamWTuning&)>& seconds) {
  AdamWTuning best;
  const auto consider = [&](AdamWTuning candidate) {
    if (is_quicker(candidate, best, seconds)) best = candidate;
  };
  for (const std::int64_t prefetch : {128, 512, 2048}) consider({.tile = best.tile, .prefetch = prefetch});
  for (const std::int64_t tile : {std::int64_t{1} << 11, std::int64_t{1} << 15, std::int64_t{1} << 17})
    consider({.tile = tile, .prefetch = best.prefetch});
  return best;
}

HostRates measure_host(Device& device, ThreadPool& pool, DType moments, std::size_t most_bytes, double link_to_host,
                       double link_to_device) {
  const Backend::Probe& probe = backend_of(device).probe;
  const double seconds = probe.host_seconds;
  HostAdamW adamw(device, pool, moments, most_bytes);
  HostRates rates;
  if (!probe.brief) {
    rates.tuning = find_tuning([&](const AdamWTuning& tuning) {
      adamw_use_tuning(tuning);
      return adamw.update<bf16>();
    });
    adamw_use_tuning(rates.tuning);
  }
  rates.adamw = adamw.rate<bf16>(seconds);
  rates.adamw_wide = adamw.rate<float>(seconds);
  rates.memory =
      probe.brief ? rates.adamw : rate_beside_copies(device, pool, adamw, link_to_host, link_to_device, seconds);
  return rates;
}

}  // namespace so
