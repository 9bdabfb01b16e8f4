// AdamW on state that the host keeps, from both sides: by the host's threads, by the device to which the state travels
// over the link and back, and by both at once.
//
//   bench_link_update [cpu|cuda = cuda] [million parameters = 1000] [rounds = 5] [threads, ... = all, 13, 11, 9]
//
// State is fp32 masters and moments in pinned memory, in buckets of 4 Mi elements; gradients and weights are bf16. The
// host's have their gradient and their weight in pinned memory, as the engine's staging has them, and nothing copies
// those here; the device's have them in device memory. Host and device take the next bucket when they are free. Rounds
// interleave the three; printed are medians, and what the memory and the link moved: 28 bytes a parameter by the host,
// 24 over the link. Printed first is how long it takes to pin memory, untouched and touched by all threads before.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/cpus.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "bench_main.h"
#include "device/device.h"
#include "offload/memory/touch.h"
#include "optim/adamw.h"
#include "optim/device_adamw.h"
#include "plan/machine/measure.h"

namespace so::bench {
namespace {

constexpr std::int64_t bucket = std::int64_t{4} << 20;
constexpr std::size_t slots = 3, arrays = 3;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// State that travels: three streams, and places for three buckets on the device.
class Link {
 public:
  Link(Device& device, std::int64_t buckets) : adamw_(make_device_adamw(device)) {
    up_ = device.create_stream("state to device");
    work_ = device.create_stream("state");
    down_ = device.create_stream("state to host");
    for (Slot& slot : slots_) {
      for (Buffer& array : slot.state) array = device.allocate(MemoryKind::device, bucket * sizeof(float), "state");
      slot.here = device.create_event();
      slot.updated = device.create_event();
      slot.free = device.create_event(Timing::off, Waiting::sleeps);
    }
    const auto half = static_cast<std::size_t>(buckets * bucket) * sizeof(bf16);
    gradients_ = device.allocate(MemoryKind::device, half, "gradients");
    weights_ = device.allocate(MemoryKind::device, half, "weights");
    up_->zero(gradients_.data(), half);
    up_->synchronize();
  }

  void wait_for_slot() { slots_[turn_ % slots].free->synchronize(); }
  void update(std::int64_t index, const std::array<float*, arrays>& state, const AdamWStep& step) {
    Slot& slot = slots_[turn_++ % slots];
    const auto offset = static_cast<std::size_t>(index * bucket);
    constexpr std::size_t bytes = bucket * sizeof(float);
    for (std::size_t i = 0; i < arrays; ++i) up_->copy(slot.state[i].data(), state[i] + offset, bytes);
    up_->record(*slot.here);
    work_->wait(*slot.here);
    const auto at = [&](std::size_t i) { return static_cast<float*>(slot.state[i].data()); };
    const auto half = [&](const Buffer& all) {
      return Tensor(static_cast<bf16*>(all.data()) + offset, DType::bf16, {bucket});
    };
    const AdamWRun all{0, bucket, true};
    adamw_->update(*work_, step, {&all, 1}, half(gradients_), {at(0), at(1), at(2)}, half(weights_));
    work_->record(*slot.updated);
    down_->wait(*slot.updated);
    for (std::size_t i = 0; i < arrays; ++i) down_->copy(state[i] + offset, slot.state[i].data(), bytes);
    down_->record(*slot.free);
  }
  void finish() { down_->synchronize(); }

 private:
  struct Slot {
    std::array<Buffer, arrays> state;
    std::unique_ptr<Event> here, updated, free;
  };
  std::unique_ptr<DeviceAdamW> adamw_;
  Buffer gradients_, weights_;
  std::array<Slot, slots> slots_;
  std::size_t turn_ = 0;
  std::unique_ptr<Stream> up_, work_, down_;
};

void time_pinning(Device& device, ThreadPool& pool, std::size_t bytes) {
  const double begin = now();
  { const Buffer untouched = device.allocate(MemoryKind::pinned, bytes, "pinned"); }
  const double allocated = now();
  double touched = 0;
  const Buffer buffer = device.allocate(MemoryKind::pinned, bytes, "touched", [&](void* data, std::size_t size) {
    zeros_by(pool)(data, size);
    touched = now();
  });
  const double pinned = now(), gigabytes = static_cast<double>(bytes) / 1e9;
  std::printf("pinning %.1f GB: untouched %.1f GB/s (freed too); touched by %d threads %.1f, then pinned %.1f GB/s\n",
              gigabytes, gigabytes / (allocated - begin), pool.size(), gigabytes / (touched - allocated),
              gigabytes / (pinned - touched));
}

struct Result {
  double host = 0, link = 0;  // billion parameters/s
};

int main_bench(int argc, char** argv) {
  const auto argument = [&](int i, const char* otherwise) { return std::string(argc > i ? argv[i] : otherwise); };
  const std::vector<int> cpus = usable_cpus();
  ThreadPool everyone("bench", cpus, true);
  const std::unique_ptr<Device> device =
      argument(1, "cuda") == "cuda" ? make_cuda_device(0) : make_cpu_device(everyone);
  const auto buckets =
      static_cast<std::int64_t>(std::strtod(argument(2, "1000").c_str(), nullptr) * 1e6 / static_cast<double>(bucket));
  const int rounds = std::atoi(argument(3, "5").c_str());
  std::vector<int> threads;
  for (int i = 4; i < argc; ++i) threads.push_back(std::atoi(argv[i]));
  if (threads.empty())
    for (const int n : {static_cast<int>(cpus.size()), 13, 11, 9})
      if (n <= static_cast<int>(cpus.size())) threads.push_back(n);
  if (buckets < 1 || rounds < 1) {
    std::fprintf(stderr, "usage: %s [cpu|cuda] [million parameters] [rounds] [threads ...]\n", argv[0]);
    return 2;
  }
  const auto elements = static_cast<std::size_t>(buckets * bucket);
  time_pinning(*device, everyone, elements * sizeof(float));

  std::array<Buffer, arrays> memory;
  std::array<float*, arrays> state{};
  for (std::size_t i = 0; i < arrays; ++i) {
    memory[i] = device->allocate(MemoryKind::pinned, elements * sizeof(float), "state", zeros_by(everyone));
    state[i] = static_cast<float*>(memory[i].data());
  }
  constexpr std::size_t ring_bytes = 4 * bucket * sizeof(bf16);
  const Buffer gradients = device->allocate(MemoryKind::pinned, ring_bytes, "gradients", zeros_by(everyone)),
               weights = device->allocate(MemoryKind::pinned, ring_bytes, "weights", zeros_by(everyone));
  Link link(*device, buckets);
  const AdamWStep step = make_adamw_step({}, 1e-5, 0.01, 10, 1.0f);

  const auto measure = [&](ThreadPool* pool, bool over_link) {
    std::atomic<std::int64_t> next{0}, by_host{0}, by_link{0};
    const auto host = [&] {
      for (std::int64_t i = next++; i < buckets; i = next++) {
        const auto offset = static_cast<std::size_t>(i * bucket), ring = static_cast<std::size_t>(i % 4 * bucket);
        const AdamWState at{state[0] + offset, state[1] + offset, state[2] + offset};
        adamw_update_parallel(*pool, step, true,
                              std::span<const bf16>(static_cast<bf16*>(gradients.data()) + ring, bucket), at, at,
                              std::span<bf16>(static_cast<bf16*>(weights.data()) + ring, bucket));
        ++by_host;
      }
    };
    const double begin = now();
    std::thread worker;
    if (over_link)
      worker = std::thread([&] {
        for (;;) {
          link.wait_for_slot();
          const std::int64_t i = next++;
          if (i >= buckets) break;
          link.update(i, state, step);
          ++by_link;
        }
        link.finish();
      });
    if (pool) host();
    if (worker.joinable()) worker.join();
    const double billions_a_second = static_cast<double>(bucket) / (now() - begin) / 1e9;
    return Result{static_cast<double>(by_host) * billions_a_second, static_cast<double>(by_link) * billions_a_second};
  };

  std::printf("%.2f billion parameters, %d rounds, buckets of %.1f million, %s\n", static_cast<double>(elements) / 1e9,
              rounds, static_cast<double>(bucket) / 1e6, device->name().c_str());
  std::printf("%8s | %10s %7s | %10s %7s | %10s %10s %10s %14s %7s\n", "threads", "host alone", "GB/s", "link alone",
              "GB/s", "both", "host", "link", "memory's GB/s", "ratio");
  for (const int n : threads) {
    ThreadPool pool("bench", {cpus.begin(), cpus.begin() + n}, true, ThreadPool::long_spin);
    std::vector<double> host, over, both, both_host, both_link;
    for (int round = -1; round < rounds; ++round) {
      const Result a = measure(&pool, false), b = measure(nullptr, true), c = measure(&pool, true);
      if (round < 0) continue;
      host.push_back(a.host);
      over.push_back(b.link);
      both.push_back(c.host + c.link);
      both_host.push_back(c.host);
      both_link.push_back(c.link);
    }
    const double h = median(host), l = median(over), b = median(both), bh = median(both_host), bl = median(both_link);
    std::printf("%8d | %10.2f %7.1f | %10.2f %7.1f | %10.2f %10.2f %10.2f %14.1f %7.2f\n", n, h, 28 * h, l, 24 * l, b,
                bh, bl, 28 * bh + 24 * bl, b / h);
  }
  return 0;
}

}  // namespace
}  // namespace so::bench

int main(int argc, char** argv) { return so::bench::run_program(so::bench::main_bench, argc, argv); }
