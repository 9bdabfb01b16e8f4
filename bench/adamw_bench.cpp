// How near AdamW comes to the memory's speed.
//
//   bench_adamw [million parameters = 16] [repetitions = 15] [threads = all] [instruction set = best] [stores = auto]
//
// Every case is run once per repetition, the cases interleaved so that a noisy neighbour hits them all, and medians are
// printed. Bytes are those a perfect machine must move: each array read or written counted once, no read for ownership.
// Two floors are measured in the same loop with the same threads, the same pieces and the same kind of stores:
//   triad  a = b + s * c, non-temporal, 12 bytes an element (STREAM's, 2 reads and 1 write)
//   copy   the very streams of that AdamW case with next to no arithmetic in between
// and the last two columns are a case's bytes per second as a share of theirs (median of the repetitions' ratios).
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "optim/adamw.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../bench/adamw_bench.cpp"  // found from src/
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#ifndef SO_BENCH_ADAMW_ONCE
#define SO_BENCH_ADAMW_ONCE
namespace so::bench {
struct Floor {  // arrays at the first element of a piece
  const void* g;
  const float *p0, *m0, *v0;
  float *p, *m, *v;
  void* w;
  bool half;    // g and w are bf16
  bool stream;  // all outputs past the cache; otherwise only w
};
}  // namespace so::bench
#endif

HWY_BEFORE_NAMESPACE();
namespace so::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void triad(const float* b, const float* c, float* a, std::size_t count) {
  const hn::ScalableTag<float> d;
  const auto s = hn::Set(d, 3.0f);
  for (std::size_t i = 0; i < count; i += hn::Lanes(d))
    hn::Stream(hn::Add(hn::Load(d, b + i), hn::Mul(s, hn::Load(d, c + i))), d, a + i);
  hwy::FlushStream();
}

template <bool kHalf, bool kStream>
void copy_streams(const Floor& f, std::size_t count) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<std::uint16_t, decltype(d)> dh;
  for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
    auto g = hn::Zero(d);
    if constexpr (kHalf) {
      g = hn::BitCast(d, hn::PromoteTo(du, hn::Load(dh, static_cast<const std::uint16_t*>(f.g) + i)));
    } else {
      g = hn::Load(d, static_cast<const float*>(f.g) + i);
    }
    const auto m = hn::Load(d, f.m0 + i);
    const auto v = hn::Load(d, f.v0 + i);
    const auto p = hn::Add(hn::Load(d, f.p0 + i), g);
    if constexpr (kStream) {
      hn::Stream(m, d, f.m + i);
      hn::Stream(v, d, f.v + i);
      hn::Stream(p, d, f.p + i);
    } else {
      hn::Store(hn::Add(m, g), d, f.m + i);
      hn::Store(hn::Add(v, g), d, f.v + i);
      hn::Store(p, d, f.p + i);
    }
    if constexpr (kHalf) {
      hn::Stream(hn::TruncateTo(dh, hn::BitCast(du, p)), dh, static_cast<std::uint16_t*>(f.w) + i);
    } else {
      hn::Stream(p, d, static_cast<float*>(f.w) + i);
    }
  }
  hwy::FlushStream();
}

void floor_copy(const Floor& f, std::size_t count) {
  if (f.half) return f.stream ? copy_streams<true, true>(f, count) : copy_streams<true, false>(f, count);
  return f.stream ? copy_streams<false, true>(f, count) : copy_streams<false, false>(f, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace so::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so::bench {
HWY_EXPORT(triad);
HWY_EXPORT(floor_copy);
namespace {

constexpr std::int64_t kGrain = 1 << 15;

// Zeroed pages straight from the system, in huge pages where it has them, so that no case pays for the first touch.
template <class T>
T* allocate(std::size_t count) {
  const std::size_t bytes = (count * sizeof(T) + (2u << 20)) & ~std::size_t{(2u << 20) - 1};
  void* memory = std::aligned_alloc(2u << 20, bytes);
  if (!memory) std::abort();
  std::memset(memory, 0, bytes);
  return static_cast<T*>(memory);
}

struct Case {
  std::string name;
  double bytes;      // per element
  std::string copy;  // name of its floor; empty for a floor
  std::function<void(ThreadPool&)> run;
  std::vector<double> seconds;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

int main_bench(int argc, char** argv) {
  const auto argument = [&](int i, const char* otherwise) { return argc > i ? argv[i] : otherwise; };
  const std::size_t n = std::strtoull(argument(1, "16"), nullptr, 10) << 20;
  const int repetitions = std::atoi(argument(2, "15"));
  const std::vector<int> cpus = usable_cpus();
  const int threads = std::atoi(argument(3, "0"));
  const std::string set = argument(4, "best");
  const std::string stores = argument(5, "auto");
  if (n == 0 || repetitions <= 0 || threads < 0) {
    std::fprintf(stderr, "usage: %s [million parameters] [repetitions] [threads] [instruction set] [stores]\n",
                 argv[0]);
    return 2;
  }
  adamw_use_instruction_set(set == "best" ? "" : set);
  const std::map<std::string, AdamWStores> kinds = {{"auto", AdamWStores::automatic},
                                                    {"cached", AdamWStores::cached},
                                                    {"weights", AdamWStores::stream_weights},
                                                    {"all", AdamWStores::stream_all}};
  const auto kind = kinds.find(stores);
  if (kind == kinds.end()) fail("stores '{}': choose auto, cached, weights or all", stores);
  adamw_use_stores(kind->second);

  float *g = allocate<float>(n), *w = allocate<float>(n);
  float *p = allocate<float>(n), *m = allocate<float>(n), *v = allocate<float>(n);
  float *p1 = allocate<float>(n), *m1 = allocate<float>(n), *v1 = allocate<float>(n);
  for (std::size_t i = 0; i < n; ++i) {
    g[i] = 1e-3f * static_cast<float>(i % 1000) - 0.4f;  // read as bf16 these are ordinary numbers too
    p[i] = 0.5f;
  }
  bf16* gh = reinterpret_cast<bf16*>(allocate<float>(n / 2));
  for (std::size_t i = 0; i < n; ++i) gh[i] = bf16(g[i]);
  bf16* wh = reinterpret_cast<bf16*>(w);

  const AdamWStep step = make_adamw_step({}, 1e-5, 0.01, 10, 0.5f);
  const AdamWState state{p, m, v}, beside{p1, m1, v1};
  const std::span<const float> g32(g, n);
  const std::span<const bf16> g16(gh, n);
  const std::span<float> w32(w, n);
  const std::span<bf16> w16(wh, n);

  std::vector<Case> cases;
  cases.push_back({"triad",
                   12,
                   "",
                   [&](ThreadPool& pool) {
                     pool.parallel_for(static_cast<std::int64_t>(n), kGrain, [&](std::int64_t b, std::int64_t e) {
                       HWY_DYNAMIC_DISPATCH(triad)(g + b, p + b, w + b, static_cast<std::size_t>(e - b));
                     });
                   },
                   {}});
  const auto floor = [&](bool half, bool stream) {
    return [=](ThreadPool& pool) {
      pool.parallel_for(static_cast<std::int64_t>(n), kGrain, [=](std::int64_t b, std::int64_t e) {
        const AdamWState& out = stream ? beside : state;
        const Floor f{
            half ? static_cast<const void*>(gh + b) : g + b, p + b, m + b, v + b, out.master + b, out.m + b, out.v + b,
            half ? static_cast<void*>(wh + b) : w + b,       half,  stream};
        HWY_DYNAMIC_DISPATCH(floor_copy)(f, static_cast<std::size_t>(e - b));
      });
    };
  };
  cases.push_back({"copy f32 beside", 32, "", floor(false, true), {}});
  cases.push_back({"copy f32 in place", 32, "", floor(false, false), {}});
  cases.push_back({"copy bf16 beside", 28, "", floor(true, true), {}});
  cases.push_back({"copy bf16 in place", 28, "", floor(true, false), {}});
  const auto adam = [&](GradientSpan gradient, WeightSpan weights, AdamWState out) {
    return [=](ThreadPool& pool) { adamw_update_parallel(pool, step, true, gradient, state, out, weights); };
  };
  cases.push_back({"adamw f32 -> f32, beside", 32, "copy f32 beside", adam(g32, w32, beside), {}});
  cases.push_back({"adamw f32 -> f32, in place", 32, "copy f32 in place", adam(g32, w32, state), {}});
  cases.push_back({"adamw bf16 -> bf16, beside", 28, "copy bf16 beside", adam(g16, w16, beside), {}});
  cases.push_back({"adamw bf16 -> bf16, in place", 28, "copy bf16 in place", adam(g16, w16, state), {}});
  cases.push_back({"adamw f32 -> bf16, beside", 30, "", adam(g32, w16, beside), {}});
  cases.push_back({"adamw bf16 -> no weights, beside", 26, "", adam(g16, {}, beside), {}});

  std::printf("%zu Mi parameters, %d repetitions, %s, stores %s\n", n >> 20, repetitions,
              set == "best" ? adamw_instruction_sets().front().c_str() : set.c_str(), stores.c_str());
  std::vector<int> counts = {1};
  if (threads > 0)
    counts = {threads};
  else if (cpus.size() > 1)
    counts.push_back(static_cast<int>(cpus.size()));
  for (const int count : counts) {
    std::vector<int> chosen;
    for (int i = 0; i < count; ++i) chosen.push_back(cpus[static_cast<std::size_t>(i) % cpus.size()]);
    ThreadPool pool("bench", chosen, true);
    for (int r = -1; r < repetitions; ++r) {  // the first is a warm-up
      for (Case& c : cases) {
        if (r <= 0) c.seconds.clear();
        const auto start = std::chrono::steady_clock::now();
        c.run(pool);
        c.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      }
    }
    std::printf("\n%d thread%s\n%-34s %7s %12s %8s %9s %8s\n", count, count == 1 ? "" : "s", "", "B/param", "Mparam/s",
                "GB/s", "of triad", "of copy");
    const auto share = [&](const Case& c, const Case& floor_case) {
      std::vector<double> ratios;
      for (std::size_t r = 0; r < c.seconds.size(); ++r)
        ratios.push_back(c.bytes / c.seconds[r] / (floor_case.bytes / floor_case.seconds[r]));
      return 100 * median(ratios);
    };
    for (const Case& c : cases) {
      const double seconds = median(c.seconds);
      std::printf("%-34s %7.0f %12.1f %8.2f %8.1f%%", c.name.c_str(), c.bytes, static_cast<double>(n) / seconds / 1e6,
                  c.bytes * static_cast<double>(n) / seconds / 1e9, share(c, cases[0]));
      const auto own = std::find_if(cases.begin(), cases.end(), [&](const Case& f) { return f.name == c.copy; });
      if (own != cases.end()) std::printf(" %7.1f%%", share(c, *own));
      std::printf("\n");
    }
  }
  return 0;
}

}  // namespace
}  // namespace so::bench

int main(int argc, char** argv) {
  try {
    return so::bench::main_bench(argc, argv);
  } catch (const so::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
#endif  // HWY_ONCE
