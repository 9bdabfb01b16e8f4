// Measures what it costs that AdamW on the host goes bucket by bucket.
//
//   bench_adamw_buckets [million parameters = 500] [million elements of a bucket = 4.194304] [rounds = 9] [threads]
//
// The same buckets, gradients and weights in bf16, the state in place, in three ways: all pieces of all buckets as one
// job, which is the limit; each bucket begun when all threads have left the one before, as a loop of parallel_for()
// does it; and each begun while the one before is under way, as the engine's host thread does it. Ways take turns.
// Bytes are those a perfect machine must move. Without a number of threads all cores but one are used, as beside a GPU.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/cpus.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "bench_main.h"
#include "optim/adamw.h"
#include "plan/machine/measure.h"

namespace so::bench {
namespace {

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};

// `count` elements, touched first by the pool's threads.
template <class T>
std::unique_ptr<T, FreeMemory> allocate(ThreadPool& pool, std::int64_t count) {
  constexpr std::size_t line = 64;
  const std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(T) + line - 1) / line * line;
  std::unique_ptr<T, FreeMemory> memory(static_cast<T*>(std::aligned_alloc(line, bytes)));
  if (!memory) fail("{} bytes cannot be had", bytes);
  pool.parallel_for(count, 1 << 18, [&](std::int64_t begin, std::int64_t end) {
    std::fill(&memory.get()[begin], &memory.get()[end], T(0.0f));
  });
  return memory;
}

template <class Moment>
void time_moments(ThreadPool& pool, std::int64_t buckets, std::int64_t bucket, int rounds, const char* name) {
  const std::int64_t elements = buckets * bucket;
  const auto master = allocate<float>(pool, elements);
  const auto m = allocate<Moment>(pool, elements), v = allocate<Moment>(pool, elements);
  const auto gradient = allocate<bf16>(pool, elements), weight = allocate<bf16>(pool, elements);
  const AdamWStep step = make_adamw_step({}, 1e-5, 0.01, 10, 1.0f);
  const auto work = [&](std::int64_t i) {
    const std::int64_t at = i * bucket;
    const AdamWState state{master.get() + at, m.get() + at, v.get() + at};
    return adamw_update_work(step, true, std::span<const bf16>(gradient.get() + at, static_cast<std::size_t>(bucket)),
                             state, state, std::span(weight.get() + at, static_cast<std::size_t>(bucket)));
  };
  const auto as_one = [&] {
    std::vector<ParallelWork> all;
    for (std::int64_t i = 0; i < buckets; ++i) all.push_back(work(i));
    pool.run(all_of(std::move(all)));
  };
  const auto one_by_one = [&] {
    for (std::int64_t i = 0; i < buckets; ++i) pool.run(work(i));
  };
  const auto overlapping = [&] {
    ThreadPool::Job before = pool.begin(work(0));
    for (std::int64_t i = 1; i < buckets; ++i) {
      ThreadPool::Job job = pool.begin(work(i));
      pool.finish_in_line(std::exchange(before, std::move(job)));
    }
    pool.finish(std::move(before));
  };
  const auto seconds_of = [](const auto& run) {
    const auto start = std::chrono::steady_clock::now();
    run();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::vector<double> one, apart, together;
  for (int round = -1; round < rounds; ++round) {  // the first is a warm-up
    const double a = seconds_of(as_one), b = seconds_of(one_by_one), c = seconds_of(overlapping);
    if (round < 0) continue;
    one.push_back(a);
    apart.push_back(b);
    together.push_back(c);
  }
  const double bytes = static_cast<double>(elements) * (2.0 * (sizeof(float) + 2 * sizeof(Moment)) + 2 * sizeof(bf16));
  const double limit = median(one);
  std::printf("moments in %s, %lld buckets of %.2f Mi elements\n", name, static_cast<long long>(buckets),
              static_cast<double>(bucket) / (1 << 20));
  const auto line = [&](const char* way, double seconds) {
    std::printf("  %-42s %8.1f GB/s %7.1f%% of the limit %8.1f us a bucket\n", way, bytes / seconds / 1e9,
                100 * limit / seconds, 1e6 * seconds / static_cast<double>(buckets));
  };
  line("as one job", limit);
  line("each when the one before has ended", median(apart));
  line("each while the one before is under way", median(together));
}

int main_bench(int argc, char** argv) {
  const auto number = [&](int i, double otherwise) { return argc > i ? std::strtod(argv[i], nullptr) : otherwise; };
  const std::vector<int> cpus = host_worker_cpus(usable_cores(), static_cast<int>(number(4, 0)));
  const auto bucket = static_cast<std::int64_t>(number(2, 4.194304) * 1e6);
  const auto buckets = bucket < 1 ? 0 : static_cast<std::int64_t>(number(1, 500) * 1e6) / bucket;
  const int rounds = static_cast<int>(number(3, 9));
  if (buckets < 2 || rounds < 1) {
    std::fprintf(stderr, "usage: %s [million parameters] [million elements of a bucket] [rounds] [threads]\n", argv[0]);
    return 2;
  }
  ThreadPool pool("bench", cpus, true, ThreadPool::long_spin);
  pool.pin_caller();
  std::printf("%d threads, %d rounds, medians\n", pool.size(), rounds);
  time_moments<bf16>(pool, buckets, bucket, rounds, "bf16");
  time_moments<float>(pool, buckets, bucket, rounds, "fp32");
  return 0;
}

}  // namespace
}  // namespace so::bench

int main(int argc, char** argv) { return so::bench::run_program(so::bench::main_bench, argc, argv); }
