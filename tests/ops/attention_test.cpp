#include "ops/attention_problem.h"

namespace so::attention_test {
namespace {

using testing::Array;
using testing::AttentionReference;
using testing::expect_derivative;
using testing::expect_matches;
using testing::expect_same_bits;
using testing::make_pool;
using testing::reference;
using Attention = testing::AttentionTest;
using Case = testing::AttentionCase;
using Problem = testing::AttentionProblem;

const std::vector<Case> cases = {
    {"grouped", 6, 2, 64, {{60, 60}, {130, 130}, {1, 1}, {17, 17}}},
    {"plain, odd sizes", 3, 3, 33, {{3, 3}, {70, 70}, {0, 0}, {65, 65}}},
    {"one key head for eight", 8, 1, 96, {{50, 50}, {25, 25}}},
    {"long enough to be cut", 2, 1, 16, {{600, 600}, {5, 5}}},
    {"key-value cache", 4, 2, 20, {{3, 300}, {1, 1}, {1, 530}, {0, 4}, {40, 70}}},
    {"more queries than keys", 2, 2, 8, {{5, 2}, {3, 0}, {2, 2}}},
    {"large scores", 2, 1, 64, {{100, 100}}, 100},
    {"equal lengths", 4, 2, 128, {{128, 128}, {128, 128}, {128, 128}}, 1, 8, 0},
    {"one document", 4, 4, 64, {{192, 192}}, 1, 8, 0},
    {"equal lengths, one key head for eight", 8, 1, 96, {{64, 64}, {64, 64}}, 1, 8, 0},
    {"aligned, grouped", 8, 2, 128, {{60, 60}, {130, 130}, {1, 1}, {0, 0}, {17, 17}, {64, 64}}, 1, 8},
    {"aligned, plain", 3, 3, 80, {{100, 100}, {29, 29}}, 1, 8},
    {"aligned, of 72", 2, 1, 72, {{1, 1}, {1, 1}, {140, 140}}, 1, 8},
    {"aligned, of 256", 4, 1, 256, {{70, 70}, {65, 65}}, 1, 8},
    {"aligned, of 256, equal lengths", 4, 2, 256, {{128, 128}, {128, 128}}, 1, 8, 0},
    {"aligned, of 192", 2, 1, 192, {{0, 0}, {129, 129}}, 1, 8},
    {"of 512", 2, 1, 512, {{3, 3}, {20, 40}}},
    {"aligned, of 512", 4, 2, 512, {{70, 70}, {200, 200}, {0, 0}, {1, 1}, {129, 129}}, 1, 8},
    {"aligned, of 512, equal lengths", 2, 2, 512, {{128, 128}, {128, 128}}, 1, 8, 0},
    {"aligned, of 512, one key head for eight", 8, 1, 512, {{65, 65}, {130, 130}}, 1, 8},
    {"aligned, cache of 512", 4, 2, 512, {{1, 77}, {33, 266}, {0, 4}}, 1, 8},
    {"aligned, of 512, more queries than keys", 2, 1, 512, {{5, 2}, {3, 0}, {200, 70}}, 1, 8},
    {"aligned, of 512, large scores", 2, 1, 512, {{90, 90}}, 100, 8},
    {"aligned, single tokens", 4, 2, 64, {{1, 1}, {1, 1}, {1, 1}}, 1, 8},
    {"aligned, large scores", 4, 2, 128, {{90, 90}, {80, 80}}, 100, 8},
    {"aligned, key-value cache", 4, 1, 128, {{3, 300}, {1, 1}, {1, 230}, {0, 4}, {40, 70}}, 1, 8},
    {"aligned, cache of 256", 4, 2, 256, {{1, 77}, {33, 66}}, 1, 8},
    {"aligned, of 256, three heads to a key head", 3, 1, 256, {{3, 0}, {130, 200}, {0, 4}, {140, 70}}, 1, 8},
    {"aligned, several tiles", 4, 1, 128, {{300, 300}, {5, 5}, {130, 130}, {0, 0}, {257, 257}}, 1, 8},
    {"aligned, several tiles of five heads", 5, 1, 64, {{200, 200}, {256, 256}}, 1, 8},
    {"aligned, several tiles of single heads", 6, 6, 64, {{320, 320}}, 1, 8, 0},
    {"aligned, equal lengths of single heads", 6, 6, 64, {{320, 320}, {320, 320}}, 1, 8, 0},
    {"aligned, a last tile of its own length", 1, 1, 64, {{1600, 1600}}, 1, 8, 0},
    {"aligned, more queries than keys", 2, 2, 64, {{5, 2}, {3, 0}, {100, 70}}, 1, 8},
};

TEST_F(Attention, MatchesTheFormula) {
  for (const Case& c : cases)
    for (const DType type : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(std::string(c.name) + " " + std::string(name_of(type)));
      Problem p(c, type);
      p.run();
      expect_matches(p, reference(p));
    }
}

// With less scratch the gradient is computed in parts, or in another way: never wrongly, and unless it is in any order
// twice the same.
TEST_F(Attention, TheGradientMakesDoWithLessScratch) {
  const auto grad_scratch = [](const Problem& p) { return rig().ops().memory().attention_grad(p.size()); };
  std::vector<Case> both = cases;
  for (const Case& c : cases) both.push_back(c.in_any_order());
  for (const Case& c : both) {
    Problem p(c, DType::bf16);
    const std::size_t all = grad_scratch(p), least = std::min(all, grad_scratch(Problem(c, DType::f32)));
    if (all == 0) continue;
    const AttentionReference expected = reference(p);
    for (std::size_t bytes = all;; bytes = std::max(least, bytes * 2 / 3)) {
      SCOPED_TRACE(std::string(c.name) + " with " + std::to_string(bytes) + " of " + std::to_string(all) + " bytes");
      Problem once(c, DType::bf16), again(c, DType::bf16);
      once.run_ops(rig(), bytes);
      again.run_ops(rig(), bytes);
      expect_matches(once, expected);
      if (!c.any_order) expect_same_bits(once, again);
      if (bytes == least) break;
    }
  }
}

// Then no two runs need agree. The scratch is another.
TEST_F(Attention, InAnyOrderMatchesTheFormula) {
  if (!test::on_gpu()) GTEST_SKIP() << "on a GPU only: the CPU has one order";
  for (const Case& c : cases)
    for (const DType type : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(std::string(c.name) + " " + std::string(name_of(type)));
      Problem p(c.in_any_order(), type);
      p.run();
      expect_matches(p, reference(p));
    }
}

TEST_F(Attention, TwiceTheSameBits) {
  for (const Case& c : cases)
    for (const DType type : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(c.name);
      Problem once(c, type), again(c, type);
      once.run();
      again.run();
      expect_same_bits(once, again);
    }
}

TEST_F(Attention, GradientIsTheDerivative) {
  for (const Case& c : {cases[0], cases[1], cases[4]}) expect_derivative(c);
}

TEST_F(Attention, SameBitsForAnyNumberOfThreads) {
  SO_CPU_ONLY("threads");
  for (const Case& c : cases)
    for (const DType type : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(c.name);
      Problem one(c, type);
      one.run_on_cpu(1);
      for (const int threads : {2, 3, 5}) {
        Problem many(c, type);
        many.run_on_cpu(threads);
        expect_same_bits(one, many);
      }
    }
}

// A NaN reaches every row that sees it, and no other document. (Rows before it may be hit too: their tile holds zeros
// where they do not look, and zero times NaN is NaN.)
TEST_F(Attention, NanIsNotLost) {
  const Case c{"nan", 2, 1, 40, {{30, 30}, {90, 90}}};
  Problem p(c, DType::f32);
  const std::int64_t poisoned = 30 + 50;
  p.kv.set(p.k_at(poisoned, 0) + 7, NAN);
  p.run();
  for (std::int64_t n = 0; n < 120; ++n)
    for (std::int64_t i = p.q_at(n, 0); i < p.q_at(n, c.q_heads); ++i) {
      if (n >= 30 && n < poisoned) continue;
      ASSERT_EQ(std::isnan(p.out[i]), n >= poisoned) << n;
      ASSERT_EQ(std::isnan(p.dq[i]), n >= poisoned) << n;
    }
}

TEST_F(Attention, WrongArgumentsAreRefused) {
  Problem p(cases[0], DType::f32);
  const auto check = [&](const Heads& q, const Heads& k, const AttentionSpans& s) {
    Ops::Attention call = p.call(s);
    call.q = q, call.k = k;
    check_attention(call);
  };
  EXPECT_NO_THROW(check(p.q_heads(p.q), p.k_heads(p.kv), p.spans()));
  Heads q = p.q_heads(p.q), k = p.k_heads(p.kv);
  q.offset = p.q_width - 5;
  EXPECT_THROW(check(q, k, p.spans()), Bug);
  k.heads = 4;
  EXPECT_THROW(check(p.q_heads(p.q), k, p.spans()), Bug);
  AttentionSpans s = p.spans();
  s.documents = 9;
  EXPECT_THROW(check(p.q_heads(p.q), p.k_heads(p.kv), s), Bug);
}

// Bounds are device memory: what is in them is seen when the work runs.
TEST_F(Attention, WrongBoundsAreRefused) {
  SO_CPU_ONLY("on a GPU nothing reads them back");
  Problem p(cases[0], DType::f32);
  Array reaching = Array::of({0, 60, 190, 191, 9999});
  AttentionSpans s = p.spans();
  s.cu_q = reaching.tensor();
  ThreadPool pool = make_pool(1);
  EXPECT_THROW(attention_forward(pool, p.call(s)), Bug);
}

TEST_F(Attention, OpsOnAStreamDoAsTheFunctions) {
  SO_CPU_ONLY("the CPU's functions");
  Problem direct(cases[0], DType::f32), queued(cases[0], DType::f32);
  direct.run_on_cpu(1);
  queued.run();
  expect_same_bits(direct, queued);
}

}  // namespace
}  // namespace so::attention_test
