// How near AdamW comes to the memory's speed.
//
//   bench_adamw [million parameters = 16] [repetitions = 15] [threads = all] [instruction set = best]
//               [elements of a tile = 8192] [elements fetched ahead = 0]
//
// Cases are all combinations of: gradient and weights in fp32 or in bf16, moments in fp32, bf16 or 8 bits, and what is
// written: the state in place, the state beside the old one, or a preview's weights alone. Each has its limit: a loop
// over the very same streams, in the same threads and pieces and with the same kind of stores (past the cache where the
// kernel's are), with next to no arithmetic. STREAM's triad stands above them. A case and its limit are run once per
// repetition, all interleaved so that a noisy neighbour hits them all. Printed are medians; the share of the limit is
// the median of the repetitions' ratios. Bytes are those a perfect machine must move: each array read or written
// counted once, no read for ownership. Millions of parameters may be a fraction, to see what an update as small as a
// bucket's costs.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/cpus.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "bench_main.h"
#include "optim/adamw.h"
#include "optim/adamw_tuning.h"
#include "plan/machine/measure.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../bench/adamw_bench.cpp"  // found from src/
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#ifndef SO_BENCH_ADAMW_ONCE
#define SO_BENCH_ADAMW_ONCE
namespace so::bench {
enum class Writes { in_place, beside, preview };
struct Shape {
  bool half;      // gradient and weights in bf16
  DType moments;  // f32, bf16, or u8: codes, whose scales are not counted
  Writes writes;
};
struct Streams {
  const void *g, *p0, *m0, *v0;
  void *p, *m, *v, *w;
};
}  // namespace so::bench
#endif

HWY_BEFORE_NAMESPACE();
namespace so::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using DU = hn::RebindToUnsigned<D>;
using DHalf = hn::Rebind<std::uint16_t, D>;
using DByte = hn::Rebind<std::uint8_t, D>;

HWY_INLINE V load(const float* from) { return hn::Load(D(), from); }
HWY_INLINE V load(const std::uint16_t* from) {
  return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::Load(DHalf(), from))));
}
HWY_INLINE V load(const std::uint8_t* from) { return hn::BitCast(D(), hn::PromoteTo(DU(), hn::LoadU(DByte(), from))); }
template <bool kStream, class DX, class VX, class T>
HWY_INLINE void store_lanes(DX d, VX x, T* to) {
  if constexpr (kStream) {
    hn::Stream(x, d, to);
  } else {
    hn::Store(x, d, to);
  }
}
template <bool kStream>
HWY_INLINE void store(V x, float* to) {
  store_lanes<kStream>(D(), x, to);
}
template <bool kStream>
HWY_INLINE void store(V x, std::uint16_t* to) {
  store_lanes<kStream>(DHalf(), hn::TruncateTo(DHalf(), hn::ShiftRight<16>(hn::BitCast(DU(), x))), to);
}
template <bool kStream>
HWY_INLINE void store(V x, std::uint8_t* to) {  // through the cache, as AdamW's
  hn::StoreU(hn::TruncateTo(DByte(), hn::BitCast(DU(), x)), DByte(), to);
}

void triad(const float* b, const float* c, float* a, std::size_t count) {
  const D d;
  const V s = hn::Set(d, 3.0f);
  for (std::size_t i = 0; i < count; i += hn::Lanes(d))
    hn::Stream(hn::Add(hn::Load(d, b + i), hn::Mul(s, hn::Load(d, c + i))), d, a + i);
  hwy::FlushStream();
}

// The streams of elements [begin, end). What is written differs from what was there, and stays of the same size.
template <class G, class M, Writes kWrites>
void copy_streams(const Streams& s, std::size_t begin, std::size_t end) {
  const G* g = static_cast<const G*>(s.g);
  const float* p0 = static_cast<const float*>(s.p0);
  const M *m0 = static_cast<const M*>(s.m0), *v0 = static_cast<const M*>(s.v0);
  float* p = static_cast<float*>(s.p);
  M *m = static_cast<M*>(s.m), *v = static_cast<M*>(s.v);
  G* w = static_cast<G*>(s.w);
  constexpr bool kBeside = kWrites == Writes::beside;
  const auto vector = [&](std::size_t i) HWY_ATTR {
    const V gi = load(g + i);
    const V pi = hn::Sub(gi, load(p0 + i)), mi = hn::Sub(gi, load(m0 + i)), vi = hn::Sub(gi, load(v0 + i));
    if constexpr (kWrites == Writes::preview) {
      store<true>(hn::Add(pi, hn::Add(mi, vi)), w + i);
    } else {
      store<kBeside>(mi, m + i);
      store<kBeside>(vi, v + i);
      store<kBeside>(pi, p + i);
      store<true>(pi, w + i);
    }
  };
  const std::size_t lanes = hn::Lanes(D());
  for (std::size_t i = begin; i < end; i += 2 * lanes) {
    vector(i);
    vector(i + lanes);
  }
  hwy::FlushStream();
}

template <class G, class M>
void limit_of(Writes writes, const Streams& s, std::size_t begin, std::size_t end) {
  switch (writes) {
    case Writes::in_place:
      return copy_streams<G, M, Writes::in_place>(s, begin, end);
    case Writes::beside:
      return copy_streams<G, M, Writes::beside>(s, begin, end);
    case Writes::preview:
      return copy_streams<G, M, Writes::preview>(s, begin, end);
  }
}

template <class G>
void limit_with(const Shape& shape, const Streams& s, std::size_t begin, std::size_t end) {
  if (shape.moments == DType::u8) return limit_of<G, std::uint8_t>(shape.writes, s, begin, end);
  if (shape.moments == DType::bf16) return limit_of<G, std::uint16_t>(shape.writes, s, begin, end);
  return limit_of<G, float>(shape.writes, s, begin, end);
}

void limit(const Shape& shape, const Streams& s, std::size_t begin, std::size_t end) {
  if (shape.half) return limit_with<std::uint16_t>(shape, s, begin, end);
  return limit_with<float>(shape, s, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace so::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so::bench {
HWY_EXPORT(triad);
HWY_EXPORT(limit);
namespace {

constexpr std::int64_t kGrain = 1 << 13;

// Zeroed memory, first touched by the threads that will use it, in huge pages where the system has them.
template <class T>
T* allocate(ThreadPool& pool, std::size_t count) {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  const std::size_t bytes = (count * sizeof(T) + kHuge - 1) / kHuge * kHuge;
  void* memory = std::aligned_alloc(kHuge, bytes);
  if (!memory) fail("no memory for {} bytes; choose fewer parameters", bytes);
  madvise(memory, bytes, MADV_HUGEPAGE);
  T* array = static_cast<T*>(memory);
  pool.parallel_for(static_cast<std::int64_t>(bytes / sizeof(T)), static_cast<std::int64_t>(kHuge / sizeof(T)),
                    [=](std::int64_t begin, std::int64_t end) { std::fill(array + begin, array + end, T()); });
  return array;
}

struct Case {
  std::string name;
  double bytes;  // per parameter
  std::function<void()> run, limit;
  std::vector<double> seconds, limit_seconds;
};

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int main_bench(int argc, char** argv) {
  const auto argument = [&](int i, const char* otherwise) { return argc > i ? argv[i] : otherwise; };
  // In whole pieces, so that no loop has a rest.
  const auto n = static_cast<std::size_t>(std::strtod(argument(1, "16"), nullptr) * (1 << 20)) / 4096 * 4096;
  const int repetitions = std::atoi(argument(2, "15"));
  const int threads = std::atoi(argument(3, "0"));
  const std::string set = argument(4, "best");
  if (n == 0 || repetitions <= 0 || threads < 0) {
    std::fprintf(stderr, "usage: %s [million parameters] [repetitions] [threads] [instruction set] [tile] [ahead]\n",
                 argv[0]);
    return 2;
  }
  adamw_use_instruction_set(set == "best" ? "" : set);
  AdamWTuning tuning;
  if (argc > 5) tuning.tile = std::atoll(argv[5]);
  if (argc > 6) tuning.prefetch = std::atoll(argv[6]);
  adamw_use_tuning(tuning);
  const std::vector<int> cpus = usable_cpus();
  std::vector<int> chosen = cpus;
  if (threads > 0) {
    chosen.clear();
    for (int i = 0; i < threads; ++i) chosen.push_back(cpus[static_cast<std::size_t>(i) % cpus.size()]);
  }
  ThreadPool pool("bench", chosen, true);

  const auto floats = [&] { return allocate<float>(pool, n); };
  const auto halves = [&] { return allocate<bf16>(pool, n); };
  const auto codes = [&] { return allocate<std::uint8_t>(pool, n); };
  const auto scales = [&] { return allocate<float>(pool, n / moment_block); };
  float *g = floats(), *w = floats(), *p = floats(), *p1 = floats(), *m = floats(), *m1 = floats(), *v = floats(),
        *v1 = floats();
  bf16 *gh = halves(), *wh = halves(), *mh = halves(), *mh1 = halves(), *vh = halves(), *vh1 = halves();
  std::uint8_t *mc = codes(), *mc1 = codes(), *vc = codes(), *vc1 = codes();
  float *ms = scales(), *ms1 = scales(), *vs = scales(), *vs1 = scales();
  for (std::size_t i = 0; i < n; ++i) {
    g[i] = 1e-3f * static_cast<float>(i % 1000) - 0.4f;
    gh[i] = bf16(g[i]);
    p[i] = 0.5f;
  }

  const AdamWStep step = make_adamw_step({}, 1e-5, 0.01, 10, 0.5f);
  std::vector<Case> cases;
  for (const bool half : {false, true}) {
    for (const DType moments : {DType::f32, DType::bf16, DType::u8}) {
      for (const Writes writes : {Writes::in_place, Writes::beside, Writes::preview}) {
        const AdamWState state = moments == DType::u8     ? AdamWState{p, {mc, ms}, {vc, vs}}
                                 : moments == DType::bf16 ? AdamWState{p, mh, vh}
                                                          : AdamWState{p, m, v};
        const AdamWState other = moments == DType::u8     ? AdamWState{p1, {mc1, ms1}, {vc1, vs1}}
                                 : moments == DType::bf16 ? AdamWState{p1, mh1, vh1}
                                                          : AdamWState{p1, m1, v1};
        const AdamWState out = writes == Writes::beside ? other : state;
        const GradientSpan gradient =
            half ? GradientSpan(std::span<const bf16>(gh, n)) : GradientSpan(std::span<const float>(g, n));
        const WeightSpan weights = half ? WeightSpan(std::span(wh, n)) : WeightSpan(std::span(w, n));
        Case c;
        c.name =
            fmt::format("{}, moments {}, {}", half ? "bf16" : "f32", moments == DType::u8 ? "fp8" : name_of(moments),
                        writes == Writes::in_place ? "in place"
                        : writes == Writes::beside ? "beside"
                                                   : "preview");
        c.bytes = 2 * (half ? 2 : 4) + (writes == Writes::preview ? 1 : 2) * state_bytes(moments);
        c.run = [=, &pool] {
          if (writes == Writes::preview)
            pool.run(adamw_preview_work(step, true, gradient, state, weights));
          else
            adamw_update_parallel(pool, step, true, gradient, state, out, weights);
        };
        const Shape shape{half, moments, writes};
        const Streams streams{half ? static_cast<const void*>(gh) : g,
                              state.master,
                              state.m.data(),
                              state.v.data(),
                              out.master,
                              out.m.data(),
                              out.v.data(),
                              half ? static_cast<void*>(wh) : w};
        c.limit = [=, &pool] {
          pool.parallel_for(static_cast<std::int64_t>(n), kGrain, [&](std::int64_t begin, std::int64_t end) {
            HWY_DYNAMIC_DISPATCH(limit)
            (shape, streams, static_cast<std::size_t>(begin), static_cast<std::size_t>(end));
          });
        };
        cases.push_back(std::move(c));
      }
    }
  }
  const auto run_triad = [&] {
    pool.parallel_for(static_cast<std::int64_t>(n), kGrain, [&](std::int64_t b, std::int64_t e) {
      HWY_DYNAMIC_DISPATCH(triad)(g + b, p + b, w + b, static_cast<std::size_t>(e - b));
    });
  };

  // In place, a limit's loop turns moments negative, of which AdamW would take the root: each starts from zeros.
  const auto clear = [&] {
    pool.parallel_for(static_cast<std::int64_t>(n), kGrain, [&](std::int64_t b, std::int64_t e) {
      for (float* array : {m, v}) std::fill(array + b, array + e, 0.0f);
      for (bf16* array : {mh, vh}) std::fill(array + b, array + e, bf16(0.0f));
      for (std::uint8_t* array : {mc, vc}) std::fill(array + b, array + e, std::uint8_t{0});
      std::fill(p + b, p + e, 0.5f);
    });
  };
  std::vector<double> triad_seconds;
  for (int r = -1; r < repetitions; ++r) {  // the first is a warm-up
    const double seconds = seconds_of(run_triad);
    if (r >= 0) triad_seconds.push_back(seconds);
    for (Case& c : cases) {
      clear();
      const double limit_seconds = seconds_of(c.limit);
      clear();
      const double own = seconds_of(c.run);
      if (r < 0) continue;
      c.limit_seconds.push_back(limit_seconds);
      c.seconds.push_back(own);
    }
  }

  const auto gigabytes = [&](double bytes, double seconds) { return bytes * static_cast<double>(n) / seconds / 1e9; };
  std::printf("%.2f Mi parameters, %d repetitions, %d threads, %s\n", static_cast<double>(n) / (1 << 20), repetitions,
              pool.size(), set == "best" ? adamw_instruction_sets().front().c_str() : set.c_str());
  std::printf("%-32s %8s %10s %8s %11s %15s\n", "gradient and weights", "B/param", "Mparam/s", "GB/s", "limit GB/s",
              "share of limit");
  std::printf("%-32s %8d %10s %8.1f\n", "triad", 12, "", gigabytes(12, median(triad_seconds)));
  for (const Case& c : cases) {
    std::vector<double> shares;
    for (std::size_t r = 0; r < c.seconds.size(); ++r) shares.push_back(c.limit_seconds[r] / c.seconds[r]);
    const double seconds = median(c.seconds);
    std::printf("%-32s %8.0f %10.0f %8.1f %11.1f %14.1f%%\n", c.name.c_str(), c.bytes,
                static_cast<double>(n) / seconds / 1e6, gigabytes(c.bytes, seconds),
                gigabytes(c.bytes, median(c.limit_seconds)), 100 * median(shares));
  }
  return 0;
}

}  // namespace
}  // namespace so::bench

int main(int argc, char** argv) { return so::bench::run_program(so::bench::main_bench, argc, argv); }
#endif  // HWY_ONCE
