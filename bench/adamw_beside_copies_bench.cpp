// AdamW on the host beside copies over the link, which share the host's memory: in place, as after a step's verdict,
// and beside the old state, as before it, with the ways to store it; alone, beside gradients that come, beside state
// that goes, and beside both.
//
//   bench_adamw_beside_copies [cpu|cuda = cuda] [million parameters = 500] [rounds = 3] [threads = all but one]
//
// State is fp32 masters and moments, in pinned memory as the engine's where updates go over the link, and a second one
// for what is written beside it; gradients and weights are bf16. Copies go without a pause, in pieces of 8 MiB, to
// memory that is not read here and from memory that is not written. Rounds interleave all; printed are medians, of the
// memory's traffic: 28 bytes a parameter, and each byte that is copied once. The last column is AdamW's share of what
// it has in place and alone.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
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
#include "plan/machine/measure.h"

namespace so::bench {
namespace {

constexpr std::int64_t bucket = std::int64_t{4} << 20;
constexpr std::size_t arrays = 3;

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Copies one way, one after another, from its construction until stop().
class Copies {
 public:
  static constexpr std::size_t piece = std::size_t{8} << 20, all = std::size_t{1} << 30;

  Copies(Device& device, std::byte* to, const std::byte* from)
      : device_(device), stream_(device.create_stream("copies")), to_(to), from_(from), thread_([this] { run(); }) {}
  // Returns bytes/s.
  double stop() {
    leaving_ = true;
    thread_.join();
    return static_cast<double>(done_ * piece) / seconds_since(begin_);
  }

 private:
  void run() {
    device_.make_current();
    std::deque<std::unique_ptr<Event>> under_way;
    for (std::size_t i = 0; !leaving_; ++i) {
      const std::size_t at = i * piece % all;
      stream_->copy(to_ + at, from_ + at, piece);
      under_way.push_back(device_.create_event());
      stream_->record(*under_way.back());
      if (under_way.size() < 4) continue;
      under_way.front()->synchronize();
      under_way.pop_front();
      ++done_;
    }
    stream_->synchronize();
    done_ += under_way.size();
  }

  Device& device_;
  const std::unique_ptr<Stream> stream_;
  std::byte* const to_;
  const std::byte* const from_;
  const Clock::time_point begin_ = Clock::now();
  std::atomic<bool> leaving_{false};
  std::size_t done_ = 0;
  std::thread thread_;
};

struct Way {
  const char* name;
  bool in_place;
  AdamWStores stores;
};
constexpr Way ways[] = {{"in place", true, AdamWStores::automatic},
                        {"in place, all through the cache", true, AdamWStores::cached},
                        {"beside, all past the cache", false, AdamWStores::stream_all},
                        {"beside, weights past the cache", false, AdamWStores::stream_weights},
                        {"beside, all through the cache", false, AdamWStores::cached}};
struct Beside {
  const char* name;
  bool to_host, to_device;
};
constexpr Beside besides[] = {
    {"alone", false, false}, {"copies to host", true, false}, {"to device", false, true}, {"both", true, true}};

struct Result {
  double adamw = 0, to_host = 0, to_device = 0;  // bytes/s
};

int main_bench(int argc, char** argv) {
  const auto argument = [&](int i, const char* otherwise) { return std::string(argc > i ? argv[i] : otherwise); };
  const std::vector<int> cpus = usable_cpus();
  const int most = static_cast<int>(cpus.size());
  const int threads = std::atoi(argument(4, std::to_string(std::max(1, most - 1)).c_str()).c_str());
  const auto buckets =
      static_cast<std::int64_t>(std::strtod(argument(2, "500").c_str(), nullptr) * 1e6 / static_cast<double>(bucket));
  const int rounds = std::atoi(argument(3, "3").c_str());
  if (buckets < 1 || rounds < 1 || threads < 1 || threads > most) {
    std::fprintf(stderr, "usage: %s [cpu|cuda] [million parameters] [rounds] [threads]\n", argv[0]);
    return 2;
  }
  ThreadPool pool("bench", {cpus.end() - threads, cpus.end()}, true, ThreadPool::long_spin);
  const std::unique_ptr<Device> device = argument(1, "cuda") == "cuda" ? make_cuda_device(0) : make_cpu_device(pool);
  const auto pinned = [&](std::size_t bytes) {
    return device->allocate(MemoryKind::pinned, bytes, "benchmark", zeros_by(pool));
  };
  const auto elements = static_cast<std::size_t>(buckets * bucket);
  std::array<Buffer, 2 * arrays> state;
  for (Buffer& array : state) array = pinned(elements * sizeof(float));
  const Buffer gradients = pinned(elements * sizeof(bf16)), weights = pinned(elements * sizeof(bf16)),
               copied_here = pinned(Copies::all), copied_from = pinned(Copies::all),
               on_device = device->allocate(MemoryKind::device, 2 * Copies::all, "benchmark");
  auto* const there = static_cast<std::byte*>(on_device.data());
  const AdamWStep step = make_adamw_step({}, 1e-5, 0.01, 10, 1.0f);

  const auto measure = [&](const Way& way, const Beside& beside) {
    adamw_use_stores(way.stores);
    std::unique_ptr<Copies> to_host, to_device;
    if (beside.to_host) to_host = std::make_unique<Copies>(*device, static_cast<std::byte*>(copied_here.data()), there);
    if (beside.to_device)
      to_device = std::make_unique<Copies>(*device, there + Copies::all, static_cast<std::byte*>(copied_from.data()));
    const Clock::time_point begin = Clock::now();
    for (std::int64_t i = 0; i < buckets; ++i) {
      const auto at = static_cast<std::size_t>(i * bucket);
      const auto part = [&](std::size_t array) { return static_cast<float*>(state[array].data()) + at; };
      const AdamWState from{part(0), part(1), part(2)}, to{part(3), part(4), part(5)};
      adamw_update_parallel(pool, step, true, std::span<const bf16>(static_cast<bf16*>(gradients.data()) + at, bucket),
                            from, way.in_place ? from : to,
                            std::span<bf16>(static_cast<bf16*>(weights.data()) + at, bucket));
    }
    Result result;
    result.adamw = 28 * static_cast<double>(elements) / seconds_since(begin);
    if (to_host) result.to_host = to_host->stop();
    if (to_device) result.to_device = to_device->stop();
    adamw_use_stores(AdamWStores::automatic);
    return result;
  };

  std::printf("%.2f billion parameters, %d rounds, %d threads, %s\n", static_cast<double>(elements) / 1e9, rounds,
              threads, device->name().c_str());
  std::printf("%-32s %-16s %8s %8s %8s %8s %8s  GB/s, medians\n", "", "", "AdamW", "to host", "to dev.", "in all",
              "share");
  constexpr std::size_t settings = std::size(ways) * std::size(besides);
  std::array<std::vector<double>, settings> adamw, to_host, to_device;
  for (int round = -1; round < rounds; ++round)
    for (std::size_t i = 0; i < settings; ++i) {
      const Result result = measure(ways[i / std::size(besides)], besides[i % std::size(besides)]);
      if (round < 0) continue;
      adamw[i].push_back(result.adamw / 1e9);
      to_host[i].push_back(result.to_host / 1e9);
      to_device[i].push_back(result.to_device / 1e9);
    }
  for (std::size_t i = 0; i < settings; ++i) {
    const double a = median(adamw[i]), h = median(to_host[i]), d = median(to_device[i]);
    std::printf("%-32s %-16s %8.1f %8.1f %8.1f %8.1f %8.2f\n", ways[i / std::size(besides)].name,
                besides[i % std::size(besides)].name, a, h, d, a + h + d, a / median(adamw[0]));
  }
  return 0;
}

}  // namespace
}  // namespace so::bench

int main(int argc, char** argv) { return so::bench::run_program(so::bench::main_bench, argc, argv); }
