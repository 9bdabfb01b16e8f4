// AdamW against PyTorch, its coefficients, and what it refuses.
#include "optim/adamw.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "optim/adamw_twin.h"
#include "support/paths.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace so {
namespace {

constexpr double kRounding = 0x1p-24;  // the largest relative error of one fp32 operation

std::vector<float> floats(const nlohmann::json& numbers) {
  std::vector<float> values;
  for (const auto& x : numbers) values.push_back(static_cast<float>(x.get<double>()));
  return values;
}

// Error bounds of one element after some steps, relative to kRounding, followed along with the exact values. Both sides
// err (against PyTorch in fp32), hence the factors are twice the operations counted.
struct Bound {
  double m = 0, v = 0, p = 0;                    // bounds
  double exact_m = 0, exact_v = 0, exact_p = 0;  // values in double

  void step(const AdamWHyper& h, double lr, double wd, std::int64_t t, double g) {
    const double old_m = exact_m;
    exact_m += (1 - h.beta1) * (g - exact_m);
    exact_v = h.beta2 * exact_v + (1 - h.beta2) * g * g;
    const double denom = std::sqrt(exact_v / (1 - std::pow(h.beta2, static_cast<double>(t)))) + h.epsilon;
    const double size = lr / (1 - std::pow(h.beta1, static_cast<double>(t)));
    // m: the scaled gradient, the coefficient, the difference and the sum are rounded.
    m = h.beta1 * m + 8 * ((1 - h.beta1) * (std::abs(g) + std::abs(old_m)) + std::abs(exact_m));
    // v: all terms are positive, so relative errors just add up.
    v = h.beta2 * v + 10 * exact_v;
    // q = m / denom inherits m's error, half of v's relative error, and a few roundings of its own.
    const double q = (m + std::abs(exact_m) * (10 + v / (exact_v > 0 ? exact_v : 1))) / denom;
    const double old_p = exact_p;
    exact_p -= size * exact_m / denom + lr * wd * exact_p;
    // p: PyTorch rounds 1 - lr * wd, its product with p, and the sum; we the sum.
    p += size * q + 3 * std::abs(old_p) + 2 * std::abs(exact_p);
  }
};

TEST(AdamW, AgreesWithPyTorch) {
  std::ifstream file(test::fixtures() + "/optim/adamw.json");
  const auto fixture = nlohmann::json::parse(file);
  ASSERT_EQ(fixture["cases"].size(), 4u);
  for (const auto& c : fixture["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const AdamWHyper hyper{c["beta1"], c["beta2"], c["epsilon"]};
    const double lr = c["lr"], wd = c["weight_decay"];
    const auto scale = static_cast<float>(c["grad_scale"].get<double>());
    std::vector<float> p = floats(c["p0"]), m(p.size()), v(p.size());
    std::vector<Bound> bounds(p.size());
    for (std::size_t i = 0; i < p.size(); ++i) bounds[i].exact_p = p[i];
    const AdamWState state{p.data(), m.data(), v.data()};

    std::size_t compared = 0;
    const auto steps = static_cast<std::int64_t>(c["gradients"].size());
    for (std::int64_t t = 1; t <= steps; ++t) {
      const std::vector<float> g = floats(c["gradients"][static_cast<std::size_t>(t - 1)]);
      const AdamWStep step = make_adamw_step(hyper, lr, wd, t, scale);
      if (c["bf16_gradients"]) {
        std::vector<bf16> half;
        for (const float x : g) half.emplace_back(x);
        adamw_update(step, true, half, state, state);
      } else {
        adamw_update(step, true, g, state, state);
      }
      for (std::size_t i = 0; i < p.size(); ++i) bounds[i].step(hyper, lr, wd, t, double{scale} * g[i]);
      if (t != c["steps"][compared]) continue;
      for (const char* precision : {"fp32", "fp64"}) {
        const auto& expected = c[precision][compared];
        for (std::size_t i = 0; i < p.size(); ++i) {
          SCOPED_TRACE(fmt::format("step {} element {} against {}", t, i, precision));
          EXPECT_NEAR(p[i], expected["p"][i].get<double>(), kRounding * bounds[i].p);
          EXPECT_NEAR(m[i], expected["m"][i].get<double>(), kRounding * bounds[i].m);
          EXPECT_NEAR(v[i], expected["v"][i].get<double>(), kRounding * bounds[i].v);
        }
      }
      ++compared;
    }
    EXPECT_EQ(compared, 2u);
    // The bounds must mean something: after six steps at most some 200 roundings, 1e-5 of the values.
    for (const Bound& b : bounds) {
      EXPECT_LT(b.p, 300 * std::max(std::abs(b.exact_p), steps * 10 * lr));
      EXPECT_LE(b.v, 100 * b.exact_v);
    }
  }
}

// Where the factor 1 - lr * wd rounds to 1 in fp32, decay still acts: on average p shrinks by lr * wd a step.
TEST(AdamW, KeepsADecayTooSmallForAFactor) {
  ASSERT_EQ(static_cast<float>(1.0 - 1e-6 * 0.02), 1.0f);
  const AdamWStep step = make_adamw_step({}, 1e-6, 0.02, 1000);
  const std::size_t n = 4096;
  double with = 0, without = 0;
  for (const bool decay : {true, false}) {
    std::vector<float> p(n), m(n, 1e-3f), v(n, 1e-2f), g(n, 1e-3f);
    for (std::size_t i = 0; i < n; ++i) p[i] = 1.0f + 0.9f * static_cast<float>(i) / static_cast<float>(n) + 1e-7f;
    const std::vector<float> old = p;
    for (std::size_t i = 0; i < n; ++i) m[i] = 1e-3f * static_cast<float>(i % 101);  // updates of many sizes
    adamw_update(step, decay, g, {p.data(), m.data(), v.data()}, {p.data(), m.data(), v.data()});
    for (std::size_t i = 0; i < n; ++i) (decay ? with : without) += (old[i] - p[i]) / old[i];
  }
  // The mean of 4096 roundings of up to half a unit in the last place (6e-8) scatters by 6e-8 / sqrt(3) / 64 = 5e-10.
  EXPECT_NEAR((with - without) / n, 2e-8, 4 * 5e-10);
}

TEST(AdamW, ComputesTheCoefficientsInDouble) {
  const AdamWStep first = make_adamw_step({0.9, 0.999, 1e-8}, 1e-3, 0.1, 1, 0.25f);
  EXPECT_EQ(first.grad_scale, 0.25f);
  EXPECT_EQ(first.one_minus_beta1, static_cast<float>(1.0 - 0.9));
  EXPECT_EQ(first.beta2, 0.999f);
  EXPECT_EQ(first.one_minus_beta2, static_cast<float>(1.0 - 0.999));
  EXPECT_NE(first.one_minus_beta2, 1.0f - 0.999f);
  EXPECT_EQ(first.inv_sqrt_bias2, static_cast<float>(1.0 / std::sqrt(1.0 - 0.999)));
  EXPECT_EQ(first.epsilon, 1e-8f);
  EXPECT_EQ(first.step_size, static_cast<float>(1e-3 / (1.0 - 0.9)));
  EXPECT_EQ(first.decay, static_cast<float>(1e-4));
  const AdamWStep late = make_adamw_step({0.9, 0.999, 1e-8}, 1e-3, 0.1, 1'000'000);
  EXPECT_EQ(late.inv_sqrt_bias2, 1.0f);
  EXPECT_EQ(late.step_size, 1e-3f);
  EXPECT_EQ(late.grad_scale, 1.0f);
}

TEST(AdamWStep, OfAnotherLearningRate) {
  const AdamWHyper hyper{0.9, 0.95, 1e-7};
  const auto same = [](const AdamWStep& a, const AdamWStep& b) { return std::memcmp(&a, &b, sizeof a) == 0; };
  const AdamWStep step = make_adamw_step(hyper, 3e-4, 0.05, 7, 0.5f);
  EXPECT_TRUE(same(with_lr_multiplier(step, 1), step));
  for (const double power : {0.25, 8.0})
    EXPECT_TRUE(same(with_lr_multiplier(step, power), make_adamw_step(hyper, 3e-4 * power, 0.05, 7, 0.5f))) << power;
  for (const double multiplier : {0.1, 3.0, 1e-6, 1e6}) {
    AdamWStep got = with_lr_multiplier(step, multiplier);
    const AdamWStep expected = make_adamw_step(hyper, 3e-4 * multiplier, 0.05, 7, 0.5f);
    EXPECT_FLOAT_EQ(got.step_size, expected.step_size) << multiplier;
    EXPECT_FLOAT_EQ(got.decay, expected.decay) << multiplier;
    got.step_size = expected.step_size;
    got.decay = expected.decay;
    EXPECT_TRUE(same(got, expected)) << "the rest does not depend on it";
  }
  for (const double wrong : {0.0, -1.0, std::numeric_limits<double>::infinity()})
    EXPECT_THROW(with_lr_multiplier(step, wrong), Bug);
}

TEST(AdamW, RefusesHyperParametersOutOfRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(make_adamw_step({1.0, 0.999, 1e-8}, 1e-3, 0, 1), Error);
  EXPECT_THROW(make_adamw_step({0.9, -0.1, 1e-8}, 1e-3, 0, 1), Error);
  EXPECT_THROW(make_adamw_step({0.9, nan, 1e-8}, 1e-3, 0, 1), Error);
  EXPECT_THROW(make_adamw_step({0.9, 0.999, 0.0}, 1e-3, 0, 1), Error);
  EXPECT_THROW(make_adamw_step({0.9, 0.999, 1e-50}, 1e-3, 0, 1), Error);  // 0 in fp32: 0 / 0 for an unused parameter
  EXPECT_THROW(make_adamw_step({}, -1e-3, 0, 1), Error);
  EXPECT_THROW(make_adamw_step({}, nan, 0, 1), Error);
  EXPECT_THROW(make_adamw_step({}, 1e-3, -0.1, 1), Error);
  EXPECT_THROW(make_adamw_step({}, 1e-3, 0, 0), Bug);
  EXPECT_THROW(make_adamw_step({}, 1e-3, 0, 1, std::numeric_limits<float>::infinity()), Bug);
  EXPECT_NO_THROW(make_adamw_step({0.0, 0.0, 1e-8}, 0.0, 0, 1));
}

TEST(AdamW, RefusesOverlappingMemory) {
  const AdamWStep step = make_adamw_step({}, 1e-3, 0, 1);
  const std::size_t n = 16;
  std::vector<float> a(8 * n, 0.5f);
  const auto at = [&](std::size_t i) { return a.data() + i * n; };
  const std::span<const float> g(at(0), n);
  const AdamWState old{at(1), at(2), at(3)}, fresh{at(4), at(5), at(6)};
  const std::span<float> w(at(7), n);
  EXPECT_NO_THROW(adamw_update(step, false, g, old, fresh, w));
  EXPECT_NO_THROW(adamw_update(step, false, g, old, old, w));
  EXPECT_NO_THROW(adamw_update(step, false, g, old, AdamWState{at(1), at(5), at(3)}, w));  // some in place
  EXPECT_THROW(adamw_update(step, false, g, old, AdamWState{at(1) + 1, at(5), at(6)}, w), Bug);
  EXPECT_THROW(adamw_update(step, false, g, old, AdamWState{at(2), at(1), at(3)}, w), Bug);
  EXPECT_THROW(adamw_update(step, false, g, old, AdamWState{at(4), at(4), at(6)}, w), Bug);
  EXPECT_THROW(adamw_update(step, false, g, old, AdamWState{at(0), at(5), at(6)}, w), Bug);
  EXPECT_THROW(adamw_update(step, false, g, old, AdamWState{at(4), at(5), nullptr}, w), Bug);
  EXPECT_THROW(adamw_update(step, false, g, old, fresh, std::span<float>(at(0), n)), Bug);
  EXPECT_THROW(adamw_update(step, false, g, old, fresh, std::span<float>(at(6) + n - 1, n)), Bug);
  EXPECT_THROW(adamw_update(step, false, g, old, fresh, std::span<float>(at(7), n - 1)), Bug);
  EXPECT_NO_THROW(adamw_update(step, false, std::span<const float>(), AdamWStateView(), AdamWState()));

  EXPECT_NO_THROW(adamw_preview(step, false, g, old, w));
  EXPECT_THROW(adamw_preview(step, false, g, old, WeightSpan()), Bug);
  EXPECT_THROW(adamw_preview(step, false, g, old, std::span<float>(at(1), n)), Bug);
  EXPECT_THROW(adamw_preview(step, false, g, old, std::span<float>(at(3) + n - 1, n)), Bug);
  EXPECT_THROW(adamw_preview(step, false, g, old, std::span<float>(at(0), n)), Bug);
  EXPECT_THROW(adamw_preview(step, false, g, AdamWStateView(at(1), nullptr, at(3)), w), Bug);
  EXPECT_NO_THROW(adamw_preview(step, false, std::span<const float>(), AdamWStateView(), std::span<float>()));
}

TEST(AdamW, RefusesMomentsOfTwoTypes) {
  const AdamWStep step = make_adamw_step({}, 1e-3, 0, 1);
  std::vector<float> g(8, 0.1f), p(8), m(8), v(8), w(8);
  std::vector<bf16> m_half(8), v_half(8);
  const AdamWState f32{p.data(), m.data(), v.data()}, half{p.data(), m_half.data(), v_half.data()};
  const AdamWState mixed{p.data(), m.data(), v_half.data()};
  EXPECT_NO_THROW(adamw_update(step, false, g, f32, f32));
  EXPECT_NO_THROW(adamw_update(step, false, g, half, half));
  EXPECT_THROW(adamw_update(step, false, g, mixed, mixed), Bug);
  EXPECT_THROW(adamw_update(step, false, g, half, f32), Bug);
  EXPECT_THROW(adamw_update(step, false, g, f32, half), Bug);
  EXPECT_NO_THROW(adamw_preview(step, false, g, half, w));
  EXPECT_THROW(adamw_preview(step, false, g, mixed, w), Bug);
  EXPECT_EQ(half.m.as<bf16>(), m_half.data());
  EXPECT_THROW(half.m.as<float>(), Bug);
  EXPECT_EQ((half.v + 3).as<bf16>(), v_half.data() + 3);
  EXPECT_EQ((f32.v + 3).as<float>(), v.data() + 3);
}

// bf16 moments end where they begin: the array's neighbour may be another's.
TEST(AdamW, RefusesOverlappingBf16Moments) {
  const AdamWStep step = make_adamw_step({}, 1e-3, 0, 1);
  const std::size_t n = 16;
  std::vector<float> g(n, 0.1f), p(n);
  std::vector<bf16> moments(2 * n);
  const AdamWState state{p.data(), moments.data(), moments.data() + n};
  EXPECT_NO_THROW(adamw_update(step, false, g, state, state));
  const AdamWState overlapping{p.data(), moments.data(), moments.data() + n - 1};
  EXPECT_THROW(adamw_update(step, false, g, overlapping, overlapping), Bug);
}

// The contract of a second moment in bf16: with the usual beta2 it only grows, with a smaller one it follows.
TEST(AdamW, ABf16SecondMomentFallsOnlyForASmallBeta2) {
  std::vector<float> g(128, 0.0f), p(128);
  std::vector<bf16> m(128, bf16(0.0f)), old(128);
  for (std::size_t i = 0; i < old.size(); ++i) old[i] = bf16(0.25f + 0.25f * static_cast<float>(i) / 128);
  const auto fallen = [&](double beta2) {
    std::vector<bf16> v = old;
    const AdamWState state{p.data(), m.data(), v.data()};
    adamw_update(make_adamw_step({0.9, beta2, 1e-8}, 1e-3, 0, 100), false, g, state, state);
    std::size_t count = 0;
    for (std::size_t i = 0; i < v.size(); ++i) count += static_cast<float>(v[i]) < static_cast<float>(old[i]);
    return count;
  };
  EXPECT_EQ(fallen(0.999), 0u);
  EXPECT_EQ(fallen(1 - 0x1p-9 + 1e-6), 0u);
  EXPECT_GT(fallen(1 - 0x1.8p-9), 0u);
  EXPECT_EQ(fallen(1 - 0x1p-8 - 1e-6), old.size());
}

TEST(AdamW, RefusesUnknownInstructionSets) {
  AdamWChoiceGuard guard;
  EXPECT_THROW(adamw_use_instruction_set("MMX"), Error);
  for (const std::string& set : adamw_instruction_sets()) EXPECT_NO_THROW(adamw_use_instruction_set(set));
}

#if defined(__SSE2__) || defined(__aarch64__)
// The modes of the floating-point unit that flush subnormal numbers: to zero as results, and as operands.
#if defined(__SSE2__)
using FloatMode = unsigned;
constexpr FloatMode kFlushes[] = {0x8000, 0x0040};
FloatMode get_float_mode() { return _mm_getcsr(); }
void set_float_mode(FloatMode mode) { _mm_setcsr(mode); }
#else
using FloatMode = std::uint64_t;
constexpr FloatMode kFlushes[] = {FloatMode{1} << 24};  // both
FloatMode get_float_mode() {
  FloatMode mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void set_float_mode(FloatMode mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#endif

TEST(AdamW, RefusesAThreadThatFlushesSubnormals) {
  const AdamWStep step = make_adamw_step({}, 1e-3, 0, 1);
  std::vector<float> g(4, 0.1f), p(4), m(4), v(4), w(4);
  const AdamWState state{p.data(), m.data(), v.data()};
  const FloatMode mode = get_float_mode();
  for (const FloatMode flush : kFlushes) {
    set_float_mode(mode | flush);
    EXPECT_THROW(adamw_update(step, false, g, state, state), Bug);
    EXPECT_THROW(adamw_preview(step, false, g, state, w), Bug);
    set_float_mode(mode);
  }
  EXPECT_NO_THROW(adamw_update(step, false, g, state, state));
}
#endif

}  // namespace
}  // namespace so
