// Whether AdamW is quicker on fp32 master weights that are kept as their bf16 weight and 16 low bits.
//
//   bench_split_master [million parameters = 32] [repetitions = 15] [threads = all]
//
// The weight is then the master's upper half, so nothing but the state is written: 26 bytes a parameter for today's 28.
// Since the weight is rounded to nearest, the low bits say with their sign which way: master = weight * 2^16 + low. One
// case has no code: of two masters that lie half way between a weight that is even and its neighbours, both have that
// weight and the same low bits. How many of the updated masters come back as others is printed. The two loops are run
// in turn, and the ratio is the median of the repetitions' ratios.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/cpus.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "bench_main.h"
#include "optim/adamw.h"
#include "plan/machine/measure.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../bench/split_master_bench.cpp"  // found from src/
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#ifndef SO_BENCH_SPLIT_MASTER_ONCE
#define SO_BENCH_SPLIT_MASTER_ONCE
namespace so::bench {
struct SplitState {
  std::uint16_t *weight, *low;
  float *m, *v;
};
}  // namespace so::bench
#endif

HWY_BEFORE_NAMESPACE();
namespace so::bench {
namespace HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

bool split_update(bool, const AdamWStep&, const std::uint16_t*, const SplitState&, const SplitState&, std::size_t,
                  std::size_t) {
  return false;
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using DU = hn::RebindToUnsigned<D>;
using DI = hn::RebindToSigned<D>;
using DHalf = hn::Rebind<std::uint16_t, D>;
using DHalfInt = hn::Rebind<std::int16_t, D>;
using DTwo = hn::Repartition<std::uint16_t, D>;

HWY_INLINE V widen(const std::uint16_t* from) {
  return hn::BitCast(D(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::Load(DHalf(), from))));
}

// The master as adamw.h has it, from its halves.
HWY_INLINE V join(const std::uint16_t* weight, const std::uint16_t* low) {
  const auto upper = hn::ShiftLeft<16>(hn::PromoteTo(DU(), hn::Load(DHalf(), weight)));
  const auto lower = hn::PromoteTo(DI(), hn::BitCast(DHalfInt(), hn::Load(DHalf(), low)));
  return hn::BitCast(D(), hn::Add(hn::BitCast(DI(), upper), lower));
}

HWY_INLINE hn::Vec<DU> rounded(V x) {
  const DU du;
  const auto u = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1));
  return hn::Add(u, hn::Add(odd, hn::Set(du, 0x7fff)));
}

template <bool kStream, class DX, class VX, class T>
HWY_INLINE void put(DX d, VX x, T* to) {
  if constexpr (kStream) {
    hn::Stream(x, d, to);
  } else {
    hn::Store(x, d, to);
  }
}

// The arithmetic of adamw_kernels.cpp, on two vectors at a time as there.
template <bool kStream>
void split_loop(const AdamWStep& s, const std::uint16_t* g, const SplitState& in, const SplitState& out,
                std::size_t begin, std::size_t end) {
  const D d;
  const std::size_t lanes = hn::Lanes(d);
  const auto compute = [&](std::size_t i, V& p, V& m, V& v) HWY_ATTR {
    const V gi = hn::Mul(hn::Set(d, s.grad_scale), widen(g + i));
    const V m0 = hn::Load(d, in.m + i), v0 = hn::Load(d, in.v + i), p0 = join(in.weight + i, in.low + i);
    m = hn::MulAdd(hn::Set(d, s.one_minus_beta1), hn::Sub(gi, m0), m0);
    v = hn::MulAdd(hn::Mul(hn::Set(d, s.one_minus_beta2), gi), gi, hn::Mul(hn::Set(d, s.beta2), v0));
    const V denom = hn::MulAdd(hn::Sqrt(v), hn::Set(d, s.inv_sqrt_bias2), hn::Set(d, s.epsilon));
    p = hn::Sub(p0, hn::MulAdd(hn::Set(d, s.step_size), hn::Div(m, denom), hn::Mul(hn::Set(d, s.decay), p0)));
  };
  for (std::size_t i = begin; i < end; i += 2 * lanes) {
    V p, m, v, p1, m1, v1;
    compute(i, p, m, v);
    compute(i + lanes, p1, m1, v1);
    put<kStream>(d, m, out.m + i);
    put<kStream>(d, m1, out.m + i + lanes);
    put<kStream>(d, v, out.v + i);
    put<kStream>(d, v1, out.v + i + lanes);
    const DTwo two;
    put<kStream>(two, hn::ConcatOdd(two, hn::BitCast(two, rounded(p1)), hn::BitCast(two, rounded(p))), out.weight + i);
    put<kStream>(two, hn::ConcatEven(two, hn::BitCast(two, p1), hn::BitCast(two, p)), out.low + i);
  }
  hwy::FlushStream();
}

// Returns false on a machine without vectors.
bool split_update(bool beside, const AdamWStep& s, const std::uint16_t* g, const SplitState& in, const SplitState& out,
                  std::size_t begin, std::size_t end) {
  beside ? split_loop<true>(s, g, in, out, begin, end) : split_loop<false>(s, g, in, out, begin, end);
  return true;
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace so::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so::bench {
namespace {

HWY_EXPORT(split_update);

constexpr std::int64_t kGrain = 8192;

// Memory of its own, touched by the threads that work on it.
template <class T>
T* pages(ThreadPool& pool, std::int64_t n) {
  void* data = mmap(nullptr, static_cast<std::size_t>(n) * sizeof(T), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) fail("no memory for {} elements", n);
  madvise(data, static_cast<std::size_t>(n) * sizeof(T), MADV_HUGEPAGE);
  T* const array = static_cast<T*>(data);
  pool.parallel_for(n, kGrain,
                    [&](std::int64_t begin, std::int64_t end) { std::fill(array + begin, array + end, T{}); });
  return array;
}

template <class Body>
double seconds_of(const Body& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int run(int argc, char** argv) {
  const std::int64_t n = (argc > 1 ? std::atoll(argv[1]) : 32) << 20;
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 15;
  std::vector<int> cpus = usable_cpus();
  if (argc > 3) cpus.resize(std::min(cpus.size(), static_cast<std::size_t>(std::atoi(argv[3]))));
  ThreadPool pool("bench", cpus, true);

  bf16 *g = pages<bf16>(pool, n), *w = pages<bf16>(pool, n);
  std::array<AdamWState, 2> whole;
  std::array<SplitState, 2> split;
  for (std::size_t i = 0; i < 2; ++i) {
    whole[i] = {pages<float>(pool, n), pages<float>(pool, n), pages<float>(pool, n)};
    split[i] = {pages<std::uint16_t>(pool, n), pages<std::uint16_t>(pool, n), pages<float>(pool, n),
                pages<float>(pool, n)};
  }
  for (std::int64_t i = 0; i < n; ++i) {
    g[i] = bf16(1e-3f * static_cast<float>(i * 2654435761 % 1000) - 0.4f);
    // Up to 1/32, of either sign, with all 23 bits at random.
    const auto random = static_cast<std::uint32_t>((static_cast<std::uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u >> 32);
    const float master = std::bit_cast<float>((random & 0x807fffffu) | 0x3c800000u);
    whole[0].master[i] = master;
    split[0].weight[i] = std::bit_cast<std::uint16_t>(bf16(master));
    split[0].low[i] = static_cast<std::uint16_t>(random);
  }
  const auto elements = static_cast<std::size_t>(n);
  std::printf("%lld Mi parameters, %d repetitions, %d threads\n", static_cast<long long>(n >> 20), repetitions,
              pool.size());
  for (const bool beside : {true, false}) {
    std::vector<double> now, halves, ratios;
    std::size_t from = 0;
    for (int r = -1; r < repetitions; ++r) {  // the first is a warm-up
      const AdamWStep step = make_adamw_step({}, 1e-5, 0.01, r + 2 + (beside ? 0 : repetitions + 1));
      const std::size_t to = beside ? 1 - from : from;
      const double a = seconds_of([&] {
        adamw_update_parallel(pool, step, true, std::span<const bf16>(g, elements), whole[from], whole[to],
                              WeightSpan(std::span(w, elements)));
      });
      const double b = seconds_of([&] {
        pool.parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
          if (!HWY_DYNAMIC_DISPATCH(split_update)(beside, step, reinterpret_cast<const std::uint16_t*>(g), split[from],
                                                  split[to], static_cast<std::size_t>(begin),
                                                  static_cast<std::size_t>(end)))
            fail("this machine has no vectors");
        });
      });
      from = to;
      if (r < 0) continue;
      now.push_back(a);
      halves.push_back(b);
      ratios.push_back(a / b);
    }
    std::int64_t other_weights = 0, lost = 0, ties = 0;
    for (std::size_t i = 0; i < elements; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(whole[from].master[i]);
      const std::uint32_t upper = std::uint32_t{split[from].weight[i]} << 16;
      const auto low = static_cast<std::int16_t>(split[from].low[i]);
      other_weights += std::bit_cast<std::uint16_t>(w[i]) != split[from].weight[i];
      lost += upper + static_cast<std::uint32_t>(std::int32_t{low}) != bits;
      ties += (bits & 0xffff) == 0x8000;
    }
    const auto rate = [&](const std::vector<double>& seconds) {
      return static_cast<double>(n) / median(seconds) / 1e6;
    };
    std::printf(
        "%-9s now %7.0f Mparam/s, %5.1f GB/s of 28 B; split %7.0f Mparam/s, %5.1f GB/s of 26 B; %.3f times as fast\n",
        beside ? "beside" : "in place", rate(now), rate(now) * 28e-3, rate(halves), rate(halves) * 26e-3,
        median(ratios));
    std::printf("          %lld ties, %lld masters that came back as others, %lld weights differ\n",
                static_cast<long long>(ties), static_cast<long long>(lost), static_cast<long long>(other_weights));
  }
  return 0;
}

}  // namespace
}  // namespace so::bench

int main(int argc, char** argv) { return so::bench::run_program(so::bench::run, argc, argv); }
#endif  // HWY_ONCE
