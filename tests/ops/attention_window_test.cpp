// Sliding windows and sinks.
#include "ops/attention_problem.h"
#include "support/sanitized.h"

namespace so::attention_window_test {
namespace {

using testing::Array;
using testing::AttentionReference;
using testing::expect_derivative;
using testing::expect_matches;
using testing::expect_same_bits;
using testing::make_pool;
using testing::reference;
using AttentionWindow = testing::AttentionTest;
using Case = testing::AttentionCase;
using Problem = testing::AttentionProblem;

// Packed documents of uneven lengths, of equal ones (a GPU's dense case), a KV cache, and documents that are longer
// than the CPU's tasks; with 1, 2, 4 and 8 query heads to a key head.
const Case packed = {"packed", 4, 1, 64, {{60, 60}, {130, 130}, {1, 1}, {0, 0}, {17, 17}, {64, 64}}, 1, 8};
const Case equal = {"equal lengths", 2, 2, 64, {{128, 128}, {128, 128}}, 1, 8, 0};
const Case cache = {"key-value cache", 8, 1, 32, {{3, 300}, {1, 1}, {1, 230}, {0, 4}, {40, 70}, {100, 140}}, 1, 8};
const Case grouped = {"equal lengths, one key head for eight", 8, 1, 64, {{192, 192}, {192, 192}}, 1, 8, 0};
const Case broad = {"heads of 128", 4, 2, 128, {{70, 70}, {1, 1}, {90, 90}}, 1, 8};
const Case broadest = {"heads of 256", 2, 1, 256, {{70, 70}, {40, 40}}, 1, 8};
const Case widest = {"heads of 512", 4, 2, 512, {{70, 70}, {1, 1}, {200, 200}}, 1, 8};
const Case odd = {"odd sizes", 2, 1, 20, {{33, 33}, {70, 70}, {2, 90}}};
const Case cut = {"long enough to be cut", 2, 1, 16, {{5, 5}, {600, 600}}};
const Case blind = {"more queries than keys", 2, 2, 64, {{5, 2}, {3, 0}, {100, 70}}, 1, 8};

// Documents so long that a backend may have kernels of its own for their windows, with 1, 3, 4 and 8 query heads to a
// key head; of uneven lengths and of equal ones.
const Case long_ones = {"long documents", 8, 2, 64, {{600, 600}, {1, 1}, {0, 0}, {257, 257}, {64, 64}}, 1, 8};
const Case long_grouped = {
    "long, eight to a key head", 16, 2, 64, {{600, 600}, {1, 1}, {0, 0}, {257, 257}, {64, 64}, {9, 9}}, 1, 8};
const Case long_equal = {"long documents of one length", 2, 2, 64, {{512, 512}, {512, 512}}, 1, 8, 0};
const Case long_broad = {"long documents, heads of 128", 3, 1, 128, {{129, 129}, {600, 600}, {2, 2}}, 1, 8};
const Case long_broadest = {"long documents, heads of 256", 6, 2, 256, {{129, 129}, {600, 600}, {2, 2}}, 1, 8};

// Each with windows of one key, around the tiles of all backends and around the lengths of the documents.
std::vector<Case> windowed_cases() {
  std::vector<Case> all;
  for (const std::int64_t window : {1, 2, 16, 17, 59, 60, 61, 63, 64, 65, 129, 130})
    all.push_back(packed.windowed(window));
  for (const std::int64_t window : {1, 31, 32, 33, 64, 127, 128}) all.push_back(equal.windowed(window));
  for (const std::int64_t window : {1, 30, 69, 70, 71, 128, 140, 229, 230, 299, 300})
    all.push_back(cache.windowed(window));
  for (const std::int64_t window : {1, 5, 32, 33, 69, 88, 89, 90}) all.push_back(odd.windowed(window));
  for (const std::int64_t window : {1, 100, 128, 129, 511, 599}) all.push_back(cut.windowed(window));
  for (const std::int64_t window : {1, 2, 40, 69}) all.push_back(blind.windowed(window));
  for (const std::int64_t window : {64, 100}) all.push_back(grouped.windowed(window));
  for (const Case& c : {broad, broadest, widest}) all.push_back(c.windowed(33));
  all.push_back(widest.windowed(130));
  // Up to two, three and more tiles of keys for one of queries; on the CPU, which has no such tiles, one.
  const auto on_a_gpu = [](std::vector<std::int64_t> windows) {
    if (!test::on_gpu()) windows.resize(test::sanitized ? 0 : 1);
    return windows;
  };
  for (const std::int64_t window : on_a_gpu({1, 2, 64, 65, 128, 129, 130, 250, 300}))
    all.push_back(long_ones.windowed(window));
  for (const std::int64_t window : on_a_gpu({1, 64, 120, 121, 128, 129})) all.push_back(long_grouped.windowed(window));
  for (const std::int64_t window : on_a_gpu({63, 128, 256})) all.push_back(long_equal.windowed(window));
  for (const std::int64_t window : on_a_gpu({3, 100, 129, 290})) all.push_back(long_broad.windowed(window));
  for (const std::int64_t window : on_a_gpu({64, 1, 65, 129, 290})) all.push_back(long_broadest.windowed(window));
  return all;
}

// With sinks that take nearly nothing, a good part and nearly all of the softmax.
std::vector<Case> sink_cases() {
  std::vector<Case> all;
  for (const double about : test::sanitized ? std::vector{0.0} : std::vector{-40.0, 0.0, 40.0})
    for (const Case& c : {packed, equal, cache, blind, packed.windowed(20), equal.windowed(100), cache.windowed(33)})
      all.push_back(c.with_sinks(about));
  for (const Case& c : {odd, cut, cut.windowed(128), blind.windowed(3), grouped.windowed(70), broad, broadest, widest})
    all.push_back(c.with_sinks(1));
  if (test::on_gpu() || !test::sanitized)
    for (const Case& c : {long_ones.windowed(128), long_grouped.windowed(128), long_equal.windowed(130),
                          long_broad.windowed(70), long_broadest.windowed(130)})
      all.push_back(c.with_sinks(1));
  return all;
}

std::vector<Case> all_cases() {
  std::vector<Case> all = windowed_cases();
  for (const Case& c : sink_cases()) all.push_back(c);
  return all;
}

std::string name(const Case& c, DType type) {
  return std::string(c.name) + ", window " + std::to_string(c.window) +
         (c.sinks ? ", sinks about " + std::to_string(*c.sinks) : "") + ", " + std::string(name_of(type));
}

void expect_formula(const std::vector<Case>& cases) {
  for (const Case& c : cases)
    for (const DType type : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(name(c, type));
      Problem p(c, type);
      p.run();
      expect_matches(p, reference(p));
    }
}

TEST_F(AttentionWindow, MatchesTheFormula) { expect_formula(windowed_cases()); }
TEST_F(AttentionWindow, WithSinksMatchesTheFormula) { expect_formula(sink_cases()); }

TEST_F(AttentionWindow, GradientIsTheDerivative) {
  for (const Case& c : {packed.windowed(20), packed.with_sinks(0), cache.windowed(40).with_sinks(2), cut.windowed(70)})
    expect_derivative(c);
}

TEST_F(AttentionWindow, SinksGradientIsOverwrittenOrAddedTo) {
  for (const DType type : {DType::f32, DType::bf16})
    for (const DType gradient : {DType::f32, type})
      for (const Accumulate mode : {Accumulate::overwrite, Accumulate::add}) {
        SCOPED_TRACE(std::string(name_of(type)) + ", gradient " + std::string(name_of(gradient)));
        Problem p(packed.windowed(50).with_sinks(1), type);
        p.dsinks = Array::filled(gradient, {p.c.q_heads}, 7);
        p.dsinks_mode = mode;
        const AttentionReference expected = reference(p);
        p.run();
        expect_matches(p, expected);
      }
}

// Also the same bits: a window that reaches every key is no window.
TEST_F(AttentionWindow, OfAsManyKeysAsThereAreIsNone) {
  for (const Case& c : {packed, equal, cache, cut, blind.with_sinks(1)})
    for (const DType type : {DType::f32, DType::bf16}) {
      Problem plain(c, type);
      plain.run();
      const std::int64_t longest = plain.spans().max_k;
      for (const std::int64_t window : {longest, longest + 1, std::int64_t{1} << 40}) {
        const Case wide = c.windowed(window);
        SCOPED_TRACE(name(wide, type));
        Problem p(wide, type);
        p.run();
        expect_same_bits(p, plain);
      }
    }
}

TEST_F(AttentionWindow, TwiceTheSameBits) {
  for (const Case& c : all_cases())
    for (const DType type : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(name(c, type));
      Problem once(c, type), again(c, type);
      once.run();
      again.run();
      expect_same_bits(once, again);
    }
}

TEST_F(AttentionWindow, SameBitsForAnyNumberOfThreads) {
  SO_CPU_ONLY("threads");
  for (const Case& c :
       {packed.windowed(50).with_sinks(1), cache.windowed(70).with_sinks(0), cut.windowed(128), cut.with_sinks(2)})
    for (const DType type : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(name(c, type));
      Problem one(c, type);
      one.run_on_cpu(1);
      for (const int threads : {2, 3, 5}) {
        Problem many(c, type);
        many.run_on_cpu(threads);
        expect_same_bits(one, many);
      }
    }
}

// With less scratch the gradient is computed in parts, or in another way: never wrongly, and twice the same.
TEST_F(AttentionWindow, TheGradientMakesDoWithLessScratch) {
  for (const Case& base : {packed.windowed(20), packed.with_sinks(1), equal.windowed(60).with_sinks(1)}) {
    const AttentionReference expected = reference(Problem(base, DType::bf16));
    const auto needed = [&](DType type) { return rig().ops().memory().attention_grad(Problem(base, type).size()); };
    const std::size_t all = needed(DType::bf16), least = std::min(all, needed(DType::f32));
    if (all == 0) continue;
    for (std::size_t bytes = all;; bytes = std::max(least, bytes * 2 / 3)) {
      SCOPED_TRACE(name(base, DType::bf16) + " with " + std::to_string(bytes) + " of " + std::to_string(all) +
                   " bytes");
      Problem once(base, DType::bf16), again(base, DType::bf16);
      once.run_ops(rig(), bytes);
      again.run_ops(rig(), bytes);
      expect_matches(once, expected);
      expect_same_bits(once, again);
      if (bytes == least) break;
    }
  }
}

// Tiles outside the window are not computed: a NaN there, which a mask alone would let through (zero times NaN is NaN),
// reaches no row that is a few tiles beyond the window.
TEST_F(AttentionWindow, WhatLiesOutsideIsNotLookedAt) {
  const Case c = Case{"nan", 2, 1, 64, {{1000, 1000}}, 1, 8}.windowed(16);
  constexpr std::int64_t poisoned = 300, tiles = 256;
  for (const DType type : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(name(c, type));
    Problem p(c, type);
    p.kv.set(p.k_at(poisoned, 0), NAN);
    p.kv.set(p.v_at(poisoned, 0), NAN);
    p.run();
    for (std::int64_t n = 0; n < 1000; ++n) {
      const bool sees = n >= poisoned && n < poisoned + c.window;
      if (!sees && n > poisoned - tiles && n < poisoned + c.window + tiles) continue;
      ASSERT_EQ(std::isnan(p.out[p.q_at(n, 0)]), sees) << n;
      ASSERT_EQ(std::isnan(p.dq[p.q_at(n, 0)]), sees) << n;
      if (sees) continue;
      ASSERT_FALSE(std::isnan(p.dkv[p.k_at(n, 0)])) << n;
      ASSERT_FALSE(std::isnan(p.dkv[p.v_at(n, 0)])) << n;
    }
  }
}

TEST_F(AttentionWindow, WrongArgumentsAreRefused) {
  Problem p(packed.with_sinks(0), DType::bf16);
  const auto check = [&](const AttentionSpans& s, const Tensor& dsinks) {
    check_attention_grad(p.gradient_call(s, dsinks));
  };
  AttentionSpans spans = p.spans();
  EXPECT_NO_THROW(check(spans, p.dsinks.tensor()));
  EXPECT_THROW(check(spans, Tensor()), Bug);
  Array more(DType::bf16, {p.c.q_heads + 1}), wide(DType::f32, {p.c.q_heads}), counts(DType::i32, {p.c.q_heads});
  EXPECT_NO_THROW(check(spans, wide.tensor()));
  EXPECT_THROW(check(spans, more.tensor()), Bug);
  EXPECT_THROW(check(spans, counts.tensor()), Bug);
  spans.sinks = more.tensor();
  EXPECT_THROW(check(spans, p.dsinks.tensor()), Bug);
  spans.sinks = wide.tensor();  // not of the compute dtype
  EXPECT_THROW(check(spans, p.dsinks.tensor()), Bug);
  spans.sinks = Tensor();
  EXPECT_THROW(check(spans, p.dsinks.tensor()), Bug);
  EXPECT_NO_THROW(check(spans, Tensor()));
  spans.window = -1;
  EXPECT_THROW(check(spans, Tensor()), Bug);
}

}  // namespace
}  // namespace so::attention_window_test
