#include "ops/cpu/cross_entropy.h"

#include <optional>
#include <utility>

#include "ops/arrays.h"
#include "ops/checks.h"
#include "ops/ops_memory.h"
#include "support/random_tensors.h"
#include "support/rig.h"

namespace so::cross_entropy_test {
namespace {

using testing::Array;
using testing::expect_close;
using testing::Expected;
using testing::make_pool;
using testing::Mirror;
using testing::unit_roundoff;

struct Case {
  const char* name;
  std::int64_t tokens, hidden, vocabulary, chunk;
  int target_every = 1;  // rows n with n % target_every == target_every - 1 have a target
  double magnitude = 1;  // of the hidden states
};

const std::vector<Case> cases = {
    {"one row", 1, 40, 50, 8},          {"every row, one chunk", 33, 70, 129, 64},
    {"ragged chunks", 67, 48, 200, 20}, {"some rows", 90, 33, 77, 16, 3},
    {"row by row", 5, 16, 31, 1},       {"large logits", 20, 64, 100, 7, 1, 1000},
    {"no targets", 10, 20, 30, 4, 999},
};

struct Problem {
  const Case& c;
  DType type;
  Array hidden, weight, targets, losses, dhidden, dweight, workspace;
  Accumulate mode;
  static constexpr float grad_scale = 0.3f;

  Problem(const Case& cc, DType t, DType dweight_type, Accumulate m)
      : c(cc),
        type(t),
        hidden(Array::random(t, {c.tokens, c.hidden}, 1, c.magnitude)),
        weight(Array::random(t, {c.vocabulary, c.hidden}, 2)),
        targets(DType::i32, {0}),
        losses(Array::filled(DType::f32, {c.tokens}, 7)),
        dhidden(Array::filled(t, {c.tokens, c.hidden}, 7)),
        dweight(Array::random(dweight_type, {c.vocabulary, c.hidden}, 3)),
        workspace(Array::filled(DType::f32, {c.chunk, c.vocabulary}, NAN)),
        mode(m) {
    std::vector<std::int32_t> ids;
    for (std::int64_t n = 0; n < c.tokens; ++n)
      ids.push_back(n % c.target_every == c.target_every - 1 ? static_cast<std::int32_t>(n * 17 % c.vocabulary) : -100);
    targets = Array::of(ids);
  }

  Ops::LinearCrossEntropy args(bool backward) {
    Ops::LinearCrossEntropy a;
    a.hidden = hidden.tensor();
    a.weight = weight.tensor();
    a.targets = targets.tensor();
    a.losses = losses.tensor();
    a.workspace = workspace.tensor();
    a.label_smoothing = smoothing;
    a.soft_cap = cap;
    if (!backward) return a;
    a.dhidden = dhidden.tensor();
    a.dweight = dweight.tensor();
    a.dweight_mode = mode;
    a.grad_scale = grad_scale;
    return a;
  }
  // By the op on the device under test, or by one path of the CPU's directly.
  void run(int threads, bool backward, std::optional<Bf16Path> path) {
    if (path) {
      ThreadPool pool = make_pool(threads);
      const Ops::LinearCrossEntropy a = args(backward);
      expect_linear_cross_entropy(a, cpu_ops_memory());
      return linear_cross_entropy(pool, a, *path);
    }
    test::Rig rig(threads);
    Stream& stream = rig.stream();
    logits = rig.ops().memory().logits_dtype(type);
    Array space = Array::filled(logits, {c.chunk, rig.ops().memory().logits_stride(c.vocabulary)}, NAN);
    Mirror h(stream, hidden), w(stream, weight), t(stream, targets), l(stream, losses), dh(stream, dhidden),
        dw(stream, dweight), s(stream, space);
    Ops::LinearCrossEntropy a = args(backward);
    a.hidden = h.tensor(), a.weight = w.tensor(), a.targets = t.tensor(), a.losses = l.tensor();
    a.workspace = s.tensor();
    if (backward) a.dhidden = dh.tensor(), a.dweight = dw.tensor();
    std::vector<std::int32_t> with_target;
    for (std::int64_t n = 0; n < c.tokens; ++n)
      if (targets[n] >= 0) with_target.push_back(static_cast<std::int32_t>(n));
    Array row_array = Array::of(with_target), room = Array::filled(type, {c.tokens, c.hidden}, NAN);
    Mirror r(stream, row_array), g(stream, room);
    if (give_rows) a.rows = r.tensor(), a.gathered = g.tensor();
    rig.ops().linear_cross_entropy(stream, a);
    for (Mirror* result : {&l, &dh, &dw}) result->fetch();
  }
  DType logits = DType::f32;  // what the run kept its logits in
  float smoothing = 0, cap = 0;
  bool give_rows = false;  // tell the op which rows have a target
};

// In double. A logit is a sum of `hidden` products; its fp32 error is bounded as a linear layer's, by `slack`: unit
// roundoff x 2 sqrt(hidden) x the sum of magnitudes, plus its own rounding. That is the error of a loss (two logits'
// worth, and a few roundings of its own), and the relative error of a probability. The gradients are sums of
// probabilities times weights or hidden states, with the error of a sum on top, and one rounding for each time they are
// stored in bf16: dlogits, dhidden once, dweight once a chunk.
struct Reference {
  Expected losses, dhidden, dweight;

  Reference(const Problem& p, const Array& dweight_before)
      : losses(p.c.tokens), dhidden(p.dhidden.size()), dweight(p.dweight.size()) {
    const std::int64_t hidden = p.c.hidden, vocabulary = p.c.vocabulary;
    const double u = unit_roundoff(DType::f32), u_type = p.type == DType::bf16 ? unit_roundoff(p.type) : 0;
    const double u_logit = p.logits == DType::bf16 ? unit_roundoff(DType::bf16) : 0;
    const double u_dweight = p.dweight.type() == DType::bf16 ? unit_roundoff(DType::bf16) : 0;
    const auto at = [](std::vector<double>& v, std::int64_t i) -> double& { return v[static_cast<std::size_t>(i)]; };
    std::vector<double> logit(static_cast<std::size_t>(vocabulary)), slope(logit.size(), 1.0);
    double rows = 0;
    constexpr double underflow = 0x1p-126;  // what is smaller may be taken for zero
    if (p.mode == Accumulate::add)
      for (std::int64_t i = 0; i < p.dweight.size(); ++i) {
        at(dweight.value, i) = dweight_before[i];
        at(dweight.tolerance, i) = u * 2 * std::sqrt(static_cast<double>(p.c.tokens)) * std::abs(dweight_before[i]);
      }
    for (std::int64_t n = 0; n < p.c.tokens; ++n) {
      const auto target = static_cast<std::int64_t>(p.targets[n]);
      if (target < 0) continue;
      ++rows;
      double magnitude = 0, largest = -INFINITY, largest_size = 0, sum = 0;
      for (std::int64_t v = 0; v < vocabulary; ++v) {
        double value = 0, size = 0;
        for (std::int64_t i = 0; i < hidden; ++i) {
          const double term = p.hidden[n * hidden + i] * p.weight[v * hidden + i];
          value += term;
          size += std::abs(term);
        }
        if (p.cap > 0) {  // its error is that of the logit times the slope
          const double tanh = std::tanh(value / p.cap);
          value = p.cap * tanh;
          at(slope, v) = 1 - tanh * tanh;
        }
        at(logit, v) = value;
        magnitude = std::max(magnitude, size);
        largest = std::max(largest, value);
        largest_size = std::max(largest_size, std::abs(value));
      }
      for (const double x : logit) sum += std::exp(x - largest);
      double mean = 0;
      for (const double x : logit) mean += x / static_cast<double>(vocabulary);
      const double smoothing = p.smoothing, uniform = smoothing / static_cast<double>(vocabulary);
      const double lse = largest + std::log(sum), loss = lse - (1 - smoothing) * at(logit, target) - smoothing * mean;
      const double slack = u * (2 * std::sqrt(static_cast<double>(hidden)) * magnitude +
                                std::sqrt(static_cast<double>(vocabulary)) + 10) +
                           u_logit * largest_size;
      at(losses.value, n) = loss;
      at(losses.tolerance, n) = 2 * slack + u * loss;
      for (std::int64_t v = 0; v < vocabulary; ++v) {
        const double probability = std::exp(at(logit, v) - lse);
        const double wanted = uniform + (v == target ? 1 - smoothing : 0);
        const double to_capped = p.grad_scale * (probability - wanted), d = to_capped * at(slope, v);
        // The slope changes by at most 0.8 / cap with its logit.
        const double slope_error = p.cap > 0 ? std::min(1.0, 0.8 / p.cap * slack) + 8 * u : 0;
        const double d_error = p.grad_scale * (std::min(1.0, std::expm1(2 * slack) * probability) + 2 * u * wanted) +
                               slope_error * std::abs(to_capped) + u_type * std::abs(d) + underflow;
        const double growth_v = u * 2 * std::sqrt(static_cast<double>(vocabulary)),
                     growth_n = u * 2 * std::sqrt(static_cast<double>(p.c.tokens));
        for (std::int64_t i = 0; i < hidden; ++i) {
          const double w = p.weight[v * hidden + i], h = p.hidden[n * hidden + i];
          at(dhidden.value, n * hidden + i) += d * w;
          at(dhidden.tolerance, n * hidden + i) += (d_error + growth_v * std::abs(d)) * std::abs(w);
          at(dweight.value, v * hidden + i) += d * h;
          at(dweight.tolerance, v * hidden + i) += (d_error + growth_n * std::abs(d)) * std::abs(h);
        }
      }
    }
    const double chunks = std::ceil(rows / static_cast<double>(p.c.chunk));
    for (std::size_t i = 0; i < dhidden.value.size(); ++i)
      dhidden.tolerance[i] += u_type * (std::abs(dhidden.value[i]) + dhidden.tolerance[i]);
    // A partial sum is rounded after each chunk: it is no larger than the largest result, in these cases, by more
    // than 2.
    double largest = 0;
    for (const double value : dweight.value) largest = std::max(largest, std::abs(value));
    for (double& tolerance : dweight.tolerance) tolerance += u_dweight * chunks * (2 * largest + tolerance);
  }
};

struct Variant {
  DType type, dweight_type;
  std::optional<Bf16Path> path;  // none: the op on the device under test
};
std::vector<Variant> variants() {
  std::vector<Variant> all = {{DType::f32, DType::f32, std::nullopt},
                              {DType::bf16, DType::f32, std::nullopt},
                              {DType::bf16, DType::bf16, std::nullopt}};
  if (test::on_gpu()) return all;
  all.push_back({DType::f32, DType::f32, Bf16Path::widened});
  all.push_back({DType::bf16, DType::f32, Bf16Path::widened});
  all.push_back({DType::bf16, DType::bf16, Bf16Path::widened});
  if (best_bf16_path() == Bf16Path::native) {
    all.push_back({DType::bf16, DType::f32, Bf16Path::native});
    all.push_back({DType::bf16, DType::bf16, Bf16Path::native});
  }
  return all;
}

TEST(LinearCrossEntropy, MatchesTheFormula) {
  for (const Case& c : cases)
    for (const Variant& v : variants())
      for (const Accumulate mode : {Accumulate::overwrite, Accumulate::add}) {
        SCOPED_TRACE(c.name);
        struct Way {
          bool give_rows;
          float smoothing, cap;
        };
        for (const Way& way : {Way{false, 0, 0}, Way{true, 0, 0}, Way{false, 0.1f, 0}, Way{true, 1, 0}, Way{true, 0, 5},
                               Way{false, 0.1f, 30}}) {
          if (way.give_rows && v.path) continue;
          Problem p(c, v.type, v.dweight_type, mode);
          p.give_rows = way.give_rows;
          p.smoothing = way.smoothing;
          p.cap = way.cap;
          const Array dweight_before = p.dweight;
          p.run(2, true, v.path);
          const Reference expected(p, dweight_before);
          if (c.target_every > c.tokens) {  // nothing to learn: zeros, exactly, or what was there
            const Problem before(c, v.type, v.dweight_type, mode);
            for (std::int64_t n = 0; n < c.tokens; ++n) EXPECT_EQ(p.losses[n], 0);
            for (std::int64_t i = 0; i < p.dhidden.size(); ++i) EXPECT_EQ(p.dhidden[i], 0);
            for (std::int64_t i = 0; i < p.dweight.size(); ++i)
              EXPECT_EQ(p.dweight[i], mode == Accumulate::add ? before.dweight[i] : 0);
            continue;
          }
          expect_close(p.losses, expected.losses, "losses");
          expect_close(p.dhidden, expected.dhidden, "dhidden");
          expect_close(p.dweight, expected.dweight, "dweight");
        }
      }
}

TEST(LinearCrossEntropy, ForwardAloneGivesTheSameLosses) {
  for (const Case& c : cases)
    for (const Variant& v : variants()) {
      Problem forward(c, v.type, v.dweight_type, Accumulate::add), both(c, v.type, v.dweight_type, Accumulate::add);
      forward.run(2, false, v.path);
      both.run(2, true, v.path);
      EXPECT_EQ(forward.losses.bytes(), both.losses.bytes()) << c.name;
    }
}

// A uniform distribution loses log(vocabulary), and a certain one nothing, however large its logits.
TEST(LinearCrossEntropy, KnownLosses) {
  const Case c{"known", 2, 1, 1000, 2};
  Problem p(c, DType::f32, DType::f32, Accumulate::overwrite);
  p.hidden.set(0, 0);
  p.hidden.set(1, 1e5);
  for (std::int64_t v = 0; v < c.vocabulary; ++v) p.weight.set(v, v == 17 ? 1 : 0);  // 17 is the target of row 1
  p.run(1, true, std::nullopt);
  EXPECT_NEAR(p.losses[0], std::log(1000.0), std::log(1000.0) * 4 * unit_roundoff(DType::f32));
  EXPECT_EQ(p.losses[1], 0);
  EXPECT_EQ(p.dhidden[1], 0);
}

// The formula of transformers' LabelSmoother (trainer_pt_utils.py): (1 - epsilon) * nll + epsilon * the mean of
// -log_probs over the vocabulary. The only hidden element sees the gradient through weights of 1, 2 and 4.
TEST(LinearCrossEntropy, SmoothsAsTransformers) {
  const Case c{"three logits", 1, 1, 3, 1};
  Problem p(c, DType::f32, DType::f32, Accumulate::overwrite);
  const double x[] = {1, 2, 4};
  p.hidden.set(0, 1);
  for (std::int64_t v = 0; v < 3; ++v) p.weight.set(v, x[v]);
  p.targets = Array::of(std::vector<std::int32_t>{1});
  p.smoothing = 0.3f;
  p.run(1, true, std::nullopt);
  const double sum = std::exp(x[0]) + std::exp(x[1]) + std::exp(x[2]);
  double smoothed = 0, gradient = 0;
  for (const double logit : x) {
    smoothed += (std::log(sum) - logit) / 3;
    gradient += (std::exp(logit) / sum - 0.1 - (logit == 2 ? 0.7 : 0)) * logit;
  }
  EXPECT_NEAR(p.losses[0], 0.7 * (std::log(sum) - 2) + 0.3 * smoothed, 1e-6);
  EXPECT_NEAR(p.dhidden[0], Problem::grad_scale * gradient, 1e-6);
}

TEST(SoftCap, AgreesWithDoublePrecision) {
  test::Rig rig;
  Stream& s = rig.stream();
  for (const float cap : {0.5f, 30.0f}) {
    const test::TestTensor logits = test::random_tensor(s, DType::f32, {37, 129}, 1, 40);
    std::vector<double> expected = logits.values(s), allowed;
    for (double& x : expected) {
      x = cap * std::tanh(x / cap);
      allowed.push_back(4 * unit_roundoff(DType::f32) * std::abs(x));
    }
    rig.ops().soft_cap(s, logits, cap);
    test::expect_within(logits.values(s), expected, allowed, "soft_cap");
  }
  EXPECT_THROW(rig.ops().soft_cap(s, test::TestTensor(s, DType::f32, {2, 3}), 0), Bug);
  EXPECT_THROW(rig.ops().soft_cap(s, test::TestTensor(s, DType::bf16, {2, 3}), 1), Bug);
}

TEST(LinearCrossEntropy, NanIsNotLost) {
  const Case c{"nan", 3, 20, 50, 3};
  Problem p(c, DType::f32, DType::f32, Accumulate::overwrite);
  p.hidden.set(20 + 5, NAN);
  p.run(1, true, std::nullopt);
  EXPECT_FALSE(std::isnan(p.losses[0]));
  EXPECT_TRUE(std::isnan(p.losses[1]));
  EXPECT_TRUE(std::isnan(p.dhidden[20]));
  EXPECT_TRUE(std::isnan(p.dweight[0]));
}

TEST(LinearCrossEntropy, SameBitsForAnyNumberOfThreads) {
  SO_CPU_ONLY("threads");
  const Case large{"several tiles a chunk", 600, 200, 3000, 256, 2};
  for (const Case& c : {large, cases[2], cases[3]})
    for (const Variant& v : variants()) {
      Problem one(c, v.type, v.dweight_type, Accumulate::add);
      one.run(1, true, v.path);
      for (const int threads : {2, 3, 5}) {
        Problem many(c, v.type, v.dweight_type, Accumulate::add);
        many.run(threads, true, v.path);
        EXPECT_EQ(one.losses.bytes(), many.losses.bytes()) << c.name;
        EXPECT_EQ(one.dhidden.bytes(), many.dhidden.bytes()) << c.name;
        EXPECT_EQ(one.dweight.bytes(), many.dweight.bytes()) << c.name;
      }
    }
}

TEST(LinearCrossEntropy, WrongArgumentsAreRefused) {
  Problem p(cases[1], DType::f32, DType::f32, Accumulate::overwrite);
  Ops::LinearCrossEntropy a = p.args(true);
  a.dweight = {};
  expect_linear_cross_entropy(a, cpu_ops_memory());  // of a frozen weight
  a = p.args(true);
  a.dhidden = {};
  EXPECT_THROW(expect_linear_cross_entropy(a, cpu_ops_memory()), Bug);
  a = p.args(true);
  a.workspace = p.hidden.tensor();
  EXPECT_THROW(expect_linear_cross_entropy(a, cpu_ops_memory()), Bug);
  a = p.args(true);
  a.targets = p.losses.tensor();
  EXPECT_THROW(expect_linear_cross_entropy(a, cpu_ops_memory()), Bug);
  if (test::on_gpu()) return;  // there a target beyond the vocabulary ends the program
  Array beyond = Array::of(std::vector<std::int32_t>(static_cast<std::size_t>(p.c.tokens), 129));
  a = p.args(true);
  a.targets = beyond.tensor();
  ThreadPool pool = make_pool(1);
  EXPECT_THROW(linear_cross_entropy(pool, a), Bug);
}

}  // namespace
}  // namespace so::cross_entropy_test
