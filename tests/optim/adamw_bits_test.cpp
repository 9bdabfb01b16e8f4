// AdamW gives the bits of its contract with every instruction set this machine has, type of moments, kind of store,
// length, alignment, number of threads and special value.
#include <algorithm>
#include <cfloat>
#include <limits>
#include <random>

#include "base/error.h"
#include "base/thread_pool.h"
#include "optim/adamw_tuning.h"
#include "optim/adamw_twin.h"
#include "support/label.h"

namespace so {
namespace {

constexpr AdamWStores kAllStores[] = {AdamWStores::cached, AdamWStores::stream_weights, AdamWStores::stream_all};

struct Arrays {
  std::vector<float> g, p, m, v;
  std::vector<bf16> half;  // of g
};

Arrays random_arrays(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> exponent(-12.0f, 4.0f);
  Arrays a;
  for (std::size_t i = 0; i < count; ++i) {
    a.g.push_back(normal(random) * std::pow(10.0f, exponent(random)));
    a.half.push_back(bf16(a.g.back()));
    a.p.push_back(normal(random));
    a.m.push_back(normal(random) * std::pow(10.0f, exponent(random)));
    a.v.push_back(std::abs(normal(random)) * std::pow(10.0f, exponent(random)));
  }
  return a;
}

// To the type that moments are kept in.
template <class M>
std::vector<M> stored(const std::vector<float>& values) {
  std::vector<M> rounded;
  for (const float x : values) rounded.push_back(M(x));
  return rounded;
}

// The same with moments that type M holds exactly.
template <class M>
Arrays with_moments(Arrays a) {
  for (std::vector<float>* moments : {&a.m, &a.v})
    for (float& x : *moments) x = static_cast<float>(M(x));
  return a;
}

struct Expected {
  std::vector<float> p, m, v;  // moments as computed, before they are rounded to the type they are kept in
  std::vector<bf16> half;      // of p
};

Expected twin(const AdamWStep& step, bool decay, const Arrays& a, bool half_gradient) {
  Expected e;
  for (std::size_t i = 0; i < a.g.size(); ++i) {
    const float g = half_gradient ? static_cast<float>(a.half[i]) : a.g[i];
    const TwinElement x = adamw_twin(step, decay, g, {a.p[i], a.m[i], a.v[i]});
    e.p.push_back(x.p);
    e.m.push_back(x.m);
    e.v.push_back(x.v);
    e.half.push_back(bf16(x.p));
  }
  return e;
}

// An array with untouchable elements on both sides, beginning `offset` elements after a 64-byte boundary.
template <class T>
class Fenced {
 public:
  Fenced(std::size_t offset, std::size_t count) : storage_(kLine + kFence + offset + count + kFence), count_(count) {
    std::fill(storage_.begin(), storage_.end(), T(kMark));
    const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
    begin_ = (kLine - address % 64 / sizeof(T)) % kLine + kFence + offset;
  }
  T* data() { return storage_.data() + begin_; }
  std::span<T> span() { return {data(), count_}; }
  void fill(const std::vector<T>& from) { std::copy_n(from.begin(), count_, data()); }

  testing::AssertionResult holds(const std::vector<T>& expected) {
    for (std::size_t i = 0; i < count_; ++i)
      if (!same_bits(data()[i], expected[i]))
        return testing::AssertionFailure() << "element " << i << " is " << static_cast<float>(data()[i])
                                           << ", expected " << static_cast<float>(expected[i]);
    for (std::size_t i = 0; i < storage_.size(); ++i)
      if ((i < begin_ || i >= begin_ + count_) && static_cast<float>(storage_[i]) != kMark)
        return testing::AssertionFailure() << "wrote outside, at " << static_cast<std::ptrdiff_t>(i - begin_);
    return testing::AssertionSuccess();
  }

 private:
  static constexpr std::size_t kLine = 64 / sizeof(T), kFence = kLine;  // a line: keeps the boundary
  static constexpr float kMark = 77.0f;                                 // exact in bf16
  std::vector<T> storage_;
  std::size_t begin_ = 0, count_;
};

// Inputs, and the outputs that must come of them; moments as they are kept.
template <class M>
struct Case {
  Arrays a;
  bool decay, half_gradient;
  Expected e;
  std::vector<M> old_m, old_v, new_m, new_v;

  Case(const AdamWStep& step, Arrays arrays, bool decay_, bool half_gradient_)
      : a(with_moments<M>(std::move(arrays))),
        decay(decay_),
        half_gradient(half_gradient_),
        e(twin(step, decay, a, half_gradient)),
        old_m(stored<M>(a.m)),
        old_v(stored<M>(a.v)),
        new_m(stored<M>(e.m)),
        new_v(stored<M>(e.v)) {}

  AdamWStateView state() const { return {a.p.data(), old_m.data(), old_v.data()}; }
};

const AdamWStep kStep = make_adamw_step({0.9, 0.999, 1e-8}, 3e-4, 0.05, 7, 0.731f);

// Offsets of the arrays from a 64-byte boundary, in elements.
struct Offsets {
  std::size_t g, in, out, w;
};

template <class M>
void check_window(const Case<M>& c, const Offsets& at, std::size_t count) {
  Fenced<float> g(at.g, count);
  Fenced<bf16> gh(at.g, count);
  g.fill(c.a.g);
  gh.fill(c.a.half);
  const GradientSpan gradient =
      c.half_gradient ? GradientSpan(std::span<const bf16>(gh.span())) : GradientSpan(std::span<const float>(g.span()));
  for (int weights = 0; weights < 3; ++weights) {
    for (const bool in_place : {false, true}) {
      Fenced<float> p(at.in, count), p1(at.out, count), w(at.w, count);
      Fenced<M> m(at.in, count), v(at.in, count), m1(at.out, count), v1(at.out, count);
      Fenced<bf16> wh(at.w, count);
      p.fill(c.a.p);
      m.fill(c.old_m);
      v.fill(c.old_v);
      const AdamWState in{p.data(), m.data(), v.data()};
      const AdamWState out = in_place ? in : AdamWState{p1.data(), m1.data(), v1.data()};
      WeightSpan to;
      if (weights == 1) to = w.span();
      if (weights == 2) to = wh.span();
      adamw_update(kStep, c.decay, gradient, in, out, to);
      ASSERT_TRUE((in_place ? p : p1).holds(c.e.p)) << "p";
      ASSERT_TRUE((in_place ? m : m1).holds(c.new_m)) << "m";
      ASSERT_TRUE((in_place ? v : v1).holds(c.new_v)) << "v";
      if (!in_place) {  // the old state must survive, to be taken back up if the speculation fails
        ASSERT_TRUE(p.holds(c.a.p)) << "old p";
        ASSERT_TRUE(m.holds(c.old_m)) << "old m";
        ASSERT_TRUE(v.holds(c.old_v)) << "old v";
      }
      if (weights == 1) {
        ASSERT_TRUE(w.holds(c.e.p)) << "f32 weights";
      }
      if (weights == 2) {
        ASSERT_TRUE(wh.holds(c.e.half)) << "bf16 weights";
      }
    }
  }
}

template <class M>
void check_preview(const Case<M>& c, const Offsets& at, std::size_t count) {
  Fenced<float> g(at.g, count), p(at.in, count), w(at.w, count);
  Fenced<M> m(at.in, count), v(at.in, count);
  Fenced<bf16> gh(at.g, count), wh(at.w, count);
  g.fill(c.a.g);
  gh.fill(c.a.half);
  p.fill(c.a.p);
  m.fill(c.old_m);
  v.fill(c.old_v);
  const GradientSpan gradient =
      c.half_gradient ? GradientSpan(std::span<const bf16>(gh.span())) : GradientSpan(std::span<const float>(g.span()));
  const AdamWStateView in(p.data(), m.data(), v.data());
  adamw_preview(kStep, c.decay, gradient, in, w.span());
  adamw_preview(kStep, c.decay, gradient, in, wh.span());
  ASSERT_TRUE(w.holds(c.e.p)) << "f32 weights";
  ASSERT_TRUE(wh.holds(c.e.half)) << "bf16 weights";
  ASSERT_TRUE(p.holds(c.a.p)) << "p";
  ASSERT_TRUE(m.holds(c.old_m)) << "m";
  ASSERT_TRUE(v.holds(c.old_v)) << "v";
}

class AdamWBits : public testing::Test {
  AdamWChoiceGuard guard_;
};

// The fixture of the tests that hold for moments in fp32 and in bf16 alike.
template <class M>
class AdamWMomentBits : public AdamWBits {};
using MomentTypes = testing::Types<float, bf16>;
SO_LABEL(no_tsan, "AdamWMomentBits/*");
TYPED_TEST_SUITE(AdamWMomentBits, MomentTypes);

TYPED_TEST(AdamWMomentBits, ForEveryLengthAlignmentAndStore) {
  using M = TypeParam;
  const std::size_t longest = 200;
  for (const bool half_gradient : {false, true}) {
    const Case<M> c(kStep, random_arrays(longest, 1), true, half_gradient);
    for (const std::string& set : adamw_instruction_sets()) {
      adamw_use_instruction_set(set);
      for (const AdamWStores stores : kAllStores) {
        adamw_use_stores(stores);
        for (std::size_t count = 0; count <= longest; count += count < 70 ? 1 : 13) {
          SCOPED_TRACE(
              fmt::format("{} stores {} count {} half {}", set, static_cast<int>(stores), count, half_gradient));
          for (std::size_t offset = 0; offset < 8; ++offset)
            ASSERT_NO_FATAL_FAILURE(check_window(c, {offset, offset, offset, offset}, count));
          ASSERT_NO_FATAL_FAILURE(check_window(c, {1, 2, 5, 5}, count));    // congruent outputs
          ASSERT_NO_FATAL_FAILURE(check_window(c, {3, 0, 0, 7}, count));    // weights are not
          ASSERT_NO_FATAL_FAILURE(check_window(c, {0, 3, 21, 21}, count));  // beyond a f32 line
        }
      }
    }
  }
}

TYPED_TEST(AdamWMomentBits, OfAPreviewForEveryLengthAlignmentAndStore) {
  using M = TypeParam;
  const std::size_t longest = 200;
  for (const bool half_gradient : {false, true}) {
    const Case<M> c(kStep, random_arrays(longest, 5), true, half_gradient);
    for (const std::string& set : adamw_instruction_sets()) {
      adamw_use_instruction_set(set);
      for (const AdamWStores stores : kAllStores) {
        adamw_use_stores(stores);
        for (std::size_t count = 0; count <= longest; count += count < 70 ? 1 : 13) {
          SCOPED_TRACE(
              fmt::format("{} stores {} count {} half {}", set, static_cast<int>(stores), count, half_gradient));
          for (std::size_t offset = 0; offset < 33; offset += offset < 8 ? 1 : 5)
            ASSERT_NO_FATAL_FAILURE(check_preview(c, {1, 2, 0, offset}, count));
        }
      }
    }
  }
}

TYPED_TEST(AdamWMomentBits, WithoutDecay) {
  using M = TypeParam;
  const Case<M> c(kStep, random_arrays(100, 2), false, false), decayed(kStep, random_arrays(100, 2), true, false);
  EXPECT_FALSE(same_bits(c.e.p, decayed.e.p));
  for (const std::string& set : adamw_instruction_sets()) {
    adamw_use_instruction_set(set);
    ASSERT_NO_FATAL_FAILURE(check_window(c, {0, 0, 0, 0}, 100)) << set;
    ASSERT_NO_FATAL_FAILURE(check_preview(c, {0, 0, 0, 0}, 100)) << set;
  }
}

// The three outputs at three different offsets: no common boundary exists, and nothing may stream.
TEST_F(AdamWBits, OutputsWithNoCommonBoundary) {
  const std::size_t count = 150;
  const Arrays a = random_arrays(count, 3);
  const Expected e = twin(kStep, true, a, false);
  for (const std::string& set : adamw_instruction_sets()) {
    adamw_use_instruction_set(set);
    adamw_use_stores(AdamWStores::stream_all);
    Fenced<float> p(1, count), m(2, count), v(3, count);
    adamw_update(kStep, true, a.g, {a.p.data(), a.m.data(), a.v.data()}, {p.data(), m.data(), v.data()});
    EXPECT_TRUE(p.holds(e.p)) << set;
    EXPECT_TRUE(m.holds(e.m)) << set;
    EXPECT_TRUE(v.holds(e.v)) << set;
  }
}

// Every combination of special values: zeros of both signs, subnormals, the smallest and largest numbers, Inf, NaN.
TYPED_TEST(AdamWMomentBits, OfSpecialValues) {
  using M = TypeParam;
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  constexpr float tiny = std::numeric_limits<float>::denorm_min();
  const float full_nan = std::bit_cast<float>(0x7fffffffu);  // rounding it to bf16 as a number would carry over to -0
  const std::vector<float> any = {0.0f,   -0.0f,  1.0f,  -0.3f,   tiny,     -3 * tiny, FLT_MIN / 2, FLT_MIN, 1e-23f,
                                  1e-20f, -1e15f, 3e19f, FLT_MAX, -FLT_MAX, inf,       -inf,        nan,     full_nan};
  const std::vector<float> squares = {0.0f, tiny, 5 * tiny, FLT_MIN, 1e-30f, 0.7f, 1e20f, FLT_MAX, inf, nan};
  Arrays a;
  for (const float g : any)
    for (const float m : any)
      for (const float v : squares)
        for (const float p : any) {
          a.g.push_back(g);
          a.half.push_back(bf16(g));
          a.p.push_back(p);
          a.m.push_back(m);
          a.v.push_back(v);
        }
  const std::size_t count = a.g.size();
  for (const bool half_gradient : {false, true}) {
    const Case<M> c(kStep, a, true, half_gradient);
    EXPECT_GT(std::count_if(c.e.v.begin(), c.e.v.end(), [](float x) { return x > 0 && x < FLT_MIN; }), 100);
    for (const std::string& set : adamw_instruction_sets()) {
      adamw_use_instruction_set(set);
      std::vector<float> p(count);
      std::vector<M> m(count), v(count);
      std::vector<bf16> w(count);
      const GradientSpan gradient = half_gradient ? GradientSpan(c.a.half) : GradientSpan(c.a.g);
      adamw_update(kStep, true, gradient, c.state(), {p.data(), m.data(), v.data()}, w);
      EXPECT_TRUE(same_bits(p, c.e.p)) << set;
      EXPECT_TRUE(same_bits(m, c.new_m)) << set;
      EXPECT_TRUE(same_bits(v, c.new_v)) << set;
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(w[i].bits, bf16(p[i]).bits) << set << " " << p[i];
      std::vector<float> previewed(count);
      std::vector<bf16> previewed_half(count);
      adamw_preview(kStep, true, gradient, c.state(), previewed);
      adamw_preview(kStep, true, gradient, c.state(), previewed_half);
      EXPECT_TRUE(same_bits(previewed, c.e.p)) << set;
      EXPECT_TRUE(same_bits(previewed_half, c.e.half)) << set;
    }
  }
}

// A non-finite gradient shows in every output, so a step that was speculated on it cannot pass for a sound one.
TEST_F(AdamWBits, NonFiniteGradientsPropagate) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::string& set : adamw_instruction_sets()) {
      adamw_use_instruction_set(set);
      std::vector<float> g(40, 0.1f), p(40, 1.0f), m(40, 0.0f), v(40, 0.0f);
      g[17] = bad;
      adamw_update(kStep, true, g, {p.data(), m.data(), v.data()}, {p.data(), m.data(), v.data()});
      for (std::size_t i = 0; i < g.size(); ++i) {
        EXPECT_EQ(std::isnan(p[i]), i == 17) << set;
        EXPECT_EQ(!std::isfinite(m[i]), i == 17) << set;
        EXPECT_EQ(!std::isfinite(v[i]), i == 17) << set;
      }
    }
  }
}

// With lr = 0 the masters stay, so what comes out as bf16 shows the rounding alone: every upper half, with lower halves
// below, at and above the tie.
TEST_F(AdamWBits, RoundsWeightsToBf16) {
  const AdamWStep still = make_adamw_step({}, 0.0, 0.0, 1);
  std::vector<float> p;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper)
    for (const std::uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float x = std::bit_cast<float>(upper << 16 | lower);
      if (std::isfinite(x)) p.push_back(x);
    }
  const std::vector<float> zero(p.size(), 0.0f);
  for (const std::string& set : adamw_instruction_sets()) {
    adamw_use_instruction_set(set);
    std::vector<float> p1(p.size()), m(p.size()), v(p.size());
    std::vector<bf16> w(p.size());
    adamw_update(still, true, zero, {p.data(), zero.data(), zero.data()}, {p1.data(), m.data(), v.data()}, w);
    for (std::size_t i = 0; i < p.size(); ++i) {
      ASSERT_EQ(p1[i], p[i]) << set;
      ASSERT_EQ(w[i].bits, bf16(p[i]).bits) << set << " " << p[i];
    }
  }
}

// Moments stored in bf16 are those that fp32 would have, rounded; the masters come from the unrounded ones. With
// beta1 and beta2 of 0 the moments are the gradient and its square.
TEST_F(AdamWBits, RoundsMomentsToBf16) {
  const AdamWStep forgetful = make_adamw_step({0.0, 0.0, 1e-8}, 1e-3, 0.0, 1);
  std::vector<float> g;
  for (std::uint32_t upper = 0; upper < 0x10000; upper += 7)
    for (const std::uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float x = std::bit_cast<float>(upper << 16 | lower);
      if (std::isfinite(x)) g.push_back(x);
    }
  const std::vector<float> zero(g.size(), 0.0f);
  const std::vector<bf16> zero_moments(g.size(), bf16(0.0f));
  for (const std::string& set : adamw_instruction_sets()) {
    adamw_use_instruction_set(set);
    std::vector<float> p(g.size()), exact_p(g.size()), exact_m(g.size()), exact_v(g.size());
    std::vector<bf16> m(g.size()), v(g.size());
    adamw_update(forgetful, true, g, {zero.data(), zero.data(), zero.data()},
                 {exact_p.data(), exact_m.data(), exact_v.data()});
    adamw_update(forgetful, true, g, {zero.data(), zero_moments.data(), zero_moments.data()},
                 {p.data(), m.data(), v.data()});
    ASSERT_TRUE(same_bits(exact_m, g)) << set;
    EXPECT_TRUE(same_bits(p, exact_p)) << set;
    EXPECT_TRUE(same_bits(m, stored<bf16>(exact_m))) << set;
    EXPECT_TRUE(same_bits(v, stored<bf16>(exact_v))) << set;
  }
}

// Large enough to be cut into several pieces and to be streamed of its own accord.
TYPED_TEST(AdamWMomentBits, ForAnyNumberOfThreads) {
  using M = TypeParam;
  const std::size_t count = 150'001;
  const Case<M> c(kStep, random_arrays(count, 4), true, true);
  for (int threads = 1; threads <= 5; ++threads) {
    ThreadPool pool("test", std::vector<int>(static_cast<std::size_t>(threads), 0), false);
    for (const std::size_t offset : {0u, 5u}) {
      for (const bool in_place : {false, true}) {
        Fenced<float> p(offset, count), p1(offset, count);
        Fenced<M> m(offset, count), v(offset, count), m1(offset, count), v1(offset, count);
        Fenced<bf16> w(offset, count);
        p.fill(c.a.p);
        m.fill(c.old_m);
        v.fill(c.old_v);
        const AdamWState in{p.data(), m.data(), v.data()};
        const AdamWState out = in_place ? in : AdamWState{p1.data(), m1.data(), v1.data()};
        adamw_update_parallel(pool, kStep, true, c.a.half, in, out, w.span());
        EXPECT_TRUE((in_place ? p : p1).holds(c.e.p)) << threads;
        EXPECT_TRUE((in_place ? m : m1).holds(c.new_m)) << threads;
        EXPECT_TRUE((in_place ? v : v1).holds(c.new_v)) << threads;
        EXPECT_TRUE(w.holds(c.e.half)) << threads;
      }
      Fenced<float> w(offset, count);
      Fenced<bf16> wh(offset, count);
      pool.run(adamw_preview_work(kStep, true, c.a.half, c.state(), w.span()));
      pool.run(adamw_preview_work(kStep, true, c.a.half, c.state(), wh.span()));
      EXPECT_TRUE(w.holds(c.e.p)) << threads;
      EXPECT_TRUE(wh.holds(c.e.half)) << threads;
    }
    for (const std::size_t small : {0u, 1u, 31u, 33u}) {
      Fenced<float> p(3, small);
      Fenced<M> m(3, small), v(3, small);
      adamw_update_parallel(pool, kStep, true, std::span<const bf16>(c.a.half).first(small), c.state(),
                            {p.data(), m.data(), v.data()});
      EXPECT_TRUE(p.holds(c.e.p)) << threads << " " << small;
      Fenced<bf16> w(3, small);
      pool.run(adamw_preview_work(kStep, true, std::span<const bf16>(c.a.half).first(small), c.state(), w.span()));
      EXPECT_TRUE(w.holds(c.e.half)) << threads << " " << small;
    }
  }
}

// However the loop goes through memory.
TYPED_TEST(AdamWMomentBits, ForAnyTuning) {
  using M = TypeParam;
  const std::size_t count = 150'001;
  const Case<M> c(kStep, random_arrays(count, 4), true, true);
  ThreadPool pool("test", {0, 0, 0}, false);
  for (const std::int64_t tile : {AdamWTuning::least_tile, std::int64_t{1} << 15, AdamWTuning::most_tile})
    for (const std::int64_t prefetch : {std::int64_t{0}, std::int64_t{7}, AdamWTuning::most_prefetch}) {
      adamw_use_tuning({.tile = tile, .prefetch = prefetch});
      Fenced<float> p(5, count);
      Fenced<M> m(5, count), v(5, count);
      Fenced<bf16> w(5, count), preview(5, count);
      adamw_update_parallel(pool, kStep, true, c.a.half, c.state(), {p.data(), m.data(), v.data()}, w.span());
      pool.run(adamw_preview_work(kStep, true, c.a.half, c.state(), preview.span()));
      adamw_use_tuning({});
      EXPECT_TRUE(p.holds(c.e.p)) << tile << " " << prefetch;
      EXPECT_TRUE(m.holds(c.new_m)) << tile << " " << prefetch;
      EXPECT_TRUE(v.holds(c.new_v)) << tile << " " << prefetch;
      EXPECT_TRUE(w.holds(c.e.half)) << tile << " " << prefetch;
      EXPECT_TRUE(preview.holds(c.e.half)) << tile << " " << prefetch;
    }
  for (const AdamWTuning& wrong : {AdamWTuning{.tile = 1000}, AdamWTuning{.tile = 0}, AdamWTuning{.prefetch = -1},
                                   AdamWTuning{.prefetch = AdamWTuning::most_prefetch + 1}})
    EXPECT_THROW(adamw_use_tuning(wrong), Bug);
  EXPECT_EQ(adamw_tuning(), AdamWTuning());
}

// The vector code must really be there: a machine that has AVX2 and FMA must not end up with the scalar code.
TEST_F(AdamWBits, VectorCodeIsOffered) {
  const auto sets = adamw_instruction_sets();
  EXPECT_EQ(sets.back(), "scalar");
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    EXPECT_NE(std::find(sets.begin(), sets.end(), "AVX2"), sets.end());
    EXPECT_NE(sets.front(), "scalar");
  }
#elif defined(__aarch64__)
  EXPECT_NE(sets.front(), "scalar");
#endif
}

}  // namespace
}  // namespace so
