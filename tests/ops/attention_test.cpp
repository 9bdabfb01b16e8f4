#include "ops/cpu/attention.h"

#include <memory>

#include "ops/arrays.h"
#include "support/rig.h"

namespace so {
namespace {

using testing::Array;
using testing::expect_close;
using testing::Expected;
using testing::make_pool;
using testing::Mirror;
using testing::unit_roundoff;

struct Case {
  const char* name;
  std::int64_t q_heads, kv_heads, dim;
  std::vector<std::pair<std::int32_t, std::int32_t>> documents;  // rows of queries, of keys
  double magnitude = 1;                                          // of q: 100 makes scores in the thousands
  // Elements of a row that belong to no head, and rows that belong to no document. Only heads that begin on 16-byte
  // boundaries run on a GPU's matrix units, and only documents of one length that fill all rows are its dense case.
  std::int64_t margin = 3, spare_rows = 2;
};

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
    {"aligned, of 192", 2, 1, 192, {{0, 0}, {129, 129}}, 1, 8},
    {"aligned, single tokens", 4, 2, 64, {{1, 1}, {1, 1}, {1, 1}}, 1, 8},
    {"aligned, large scores", 4, 2, 128, {{90, 90}, {80, 80}}, 100, 8},
    {"aligned, key-value cache", 4, 1, 128, {{3, 300}, {1, 1}, {1, 230}, {0, 4}, {40, 70}}, 1, 8},
    {"aligned, cache of 256", 4, 2, 256, {{1, 77}, {33, 66}}, 1, 8},
    {"aligned, more queries than keys", 2, 2, 64, {{5, 2}, {3, 0}, {100, 70}}, 1, 8},
};

// The device under test, made once for all tests.
class Attention : public ::testing::Test {
 public:
  static test::Rig& rig() { return *rig_; }

 protected:
  static void SetUpTestSuite() { rig_ = std::make_unique<test::Rig>(); }
  static void TearDownTestSuite() { rig_.reset(); }

 private:
  inline static std::unique_ptr<test::Rig> rig_;
};

// The tensors of a case. q, k, v lie in rows wider than they are, as in a fused projection; rows beyond the last
// document must stay as they are.
struct Problem {
  const Case& c;
  DType type;
  std::int64_t margin, q_rows, k_rows, q_width, kv_width;
  std::vector<std::int32_t> cu_q = {0}, cu_k = {0};
  Array q, kv, dout, cu_q_array, cu_k_array;
  Array out, lse, dq, dkv;
  float scale;

  Problem(const Case& cc, DType t)
      : c(cc),
        type(t),
        margin(c.margin),
        q_rows(c.spare_rows),
        k_rows(c.spare_rows),
        q_width(margin + c.q_heads * c.dim + (margin % 8 == 0 ? 8 : 1)),
        kv_width(2 * c.kv_heads * c.dim + margin),
        q(t, {0}),
        kv(t, {0}),
        dout(t, {0}),
        cu_q_array(t, {0}),
        cu_k_array(t, {0}),
        out(t, {0}),
        lse(t, {0}),
        dq(t, {0}),
        dkv(t, {0}),
        scale(1.0f / std::sqrt(static_cast<float>(cc.dim))) {
    for (const auto& [lq, lk] : c.documents) {
      cu_q.push_back(cu_q.back() + lq);
      cu_k.push_back(cu_k.back() + lk);
      q_rows += lq;
      k_rows += lk;
    }
    q = Array::random(type, {q_rows, q_width}, 1, c.magnitude);
    kv = Array::random(type, {k_rows, kv_width}, 2);
    dout = Array::random(type, {q_rows, q_width}, 3);
    cu_q_array = Array::of(cu_q);
    cu_k_array = Array::of(cu_k);
    out = Array::filled(type, {q_rows, q_width}, 7);
    lse = Array::filled(DType::f32, {c.q_heads, q_rows}, 7);
    dq = Array::filled(type, {q_rows, q_width}, 7);
    dkv = Array::filled(type, {k_rows, kv_width}, 7);
  }

  // Of an Array or its Mirror.
  Heads q_heads(auto& a) const { return {a.tensor(), margin, c.q_heads, c.dim}; }
  Heads k_heads(auto& a) const { return {a.tensor(), 0, c.kv_heads, c.dim}; }
  Heads v_heads(auto& a) const { return {a.tensor(), c.kv_heads * c.dim, c.kv_heads, c.dim}; }
  AttentionSpans spans() {
    AttentionSpans s;
    s.cu_q = cu_q_array.tensor();
    s.cu_k = cu_k_array.tensor();
    s.documents = static_cast<std::int64_t>(c.documents.size());
    for (const auto& [lq, lk] : c.documents) {
      s.max_q = std::max<std::int64_t>(s.max_q, lq);
      s.max_k = std::max<std::int64_t>(s.max_k, lk);
    }
    s.scale = scale;
    return s;
  }
  std::int64_t q_at(std::int64_t row, std::int64_t head) const { return row * q_width + margin + head * c.dim; }
  std::int64_t k_at(std::int64_t row, std::int64_t head) const { return row * kv_width + head * c.dim; }
  std::int64_t v_at(std::int64_t row, std::int64_t head) const { return k_at(row, c.kv_heads + head); }

  AttentionSize size() const {
    std::int64_t longest = 0;
    for (const auto& [queries, keys] : c.documents) longest = std::max<std::int64_t>(longest, queries);
    return {q_rows, k_rows, c.q_heads, c.kv_heads, c.dim, static_cast<std::int64_t>(c.documents.size()), longest, type};
  }

  // By the device under test.
  void run() { run_ops(Attention::rig(), Attention::rig().ops().attention_grad_scratch(size())); }

  // By ops on a stream, with so much scratch for the gradient.
  void run_ops(test::Rig& rig, std::size_t grad_scratch) {
    Stream& stream = rig.stream();
    Mirror mq(stream, q), mkv(stream, kv), mdout(stream, dout), mcu_q(stream, cu_q_array), mcu_k(stream, cu_k_array),
        mout(stream, out), mlse(stream, lse), mdq(stream, dq), mdkv(stream, dkv);
    AttentionSpans s = spans();
    s.cu_q = mcu_q.tensor();
    s.cu_k = mcu_k.tensor();
    const std::size_t bytes = rig.ops().attention_scratch(size());
    Buffer scratch = rig.device().allocate(MemoryKind::device, std::max(bytes, grad_scratch), "attention scratch");
    const auto part = [&](std::size_t n) {
      return n > 0 ? Tensor(scratch.data(), DType::u8, {static_cast<std::int64_t>(n)}) : Tensor();
    };
    rig.ops().attention(stream, q_heads(mout), mlse.tensor(), q_heads(mq), k_heads(mkv), v_heads(mkv), s, part(bytes));
    rig.ops().attention_grad(stream, q_heads(mdq), k_heads(mdkv), v_heads(mdkv), Tensor(), q_heads(mdout),
                             q_heads(mout), mlse.tensor(), q_heads(mq), k_heads(mkv), v_heads(mkv), s,
                             Accumulate::overwrite, part(grad_scratch));
    for (Mirror* m : {&mout, &mlse, &mdq, &mdkv}) m->fetch();
  }

  // By the CPU's functions directly.
  void run_on_cpu(int threads) {
    ThreadPool pool = make_pool(threads);
    const AttentionSpans s = spans();
    check_attention_grad(q_heads(dq), k_heads(dkv), v_heads(dkv), q_heads(dout), q_heads(out), lse.tensor(), q_heads(q),
                         k_heads(kv), v_heads(kv), s);
    attention_forward(pool, q_heads(out), lse.tensor(), q_heads(q), k_heads(kv), v_heads(kv), s);
    attention_backward(pool, q_heads(dq), k_heads(dkv), v_heads(dkv), q_heads(dout), q_heads(out), lse.tensor(),
                       q_heads(q), k_heads(kv), v_heads(kv), s);
  }
};

// Attention as its formula has it, in double, over arrays of double: what everything is compared with, and what the
// finite differences differentiate. Elements outside the heads or the documents keep the 7 that Problem filled in.
//
// Tolerances. A score is a sum of `dim` products, its error `slack` below times the sum of their magnitudes; an error
// in a score is a relative error of its probability, and so of each term it is in. So a result that is a sum of terms
// errs by a small factor times the sum of the terms' magnitudes, where the factor is
//   unit roundoff x (2 sqrt(dim) x largest magnitude of a score + 2 sqrt(keys) + 10),
// the 10 for exponential, logarithm and division. A bf16 result is then rounded once more; backward, `out` itself
// has been rounded, which enters delta. A GPU's matrix units take bf16 operands: probabilities and their gradients are
// rounded before they are multiplied (`operand`, relative to each term), and dk and dv of the heads that share a key
// head may be rounded before they are added up (twice more: of each head, and of some of the heads).
struct Reference {
  Expected out, lse, dq, dkv;

  explicit Reference(const Problem& p, const std::vector<double>& q, const std::vector<double>& kv)
      : out(p.out.size()), lse(p.lse.size()), dq(p.dq.size()), dkv(p.dkv.size()) {
    for (Expected* e : {&out, &lse, &dq, &dkv}) std::fill(e->value.begin(), e->value.end(), 7.0);
    const std::int64_t dim = p.c.dim, group = p.c.q_heads / p.c.kv_heads;
    for (std::size_t document = 0; document < p.c.documents.size(); ++document) {
      const std::int64_t q0 = p.cu_q[document], lq = p.cu_q[document + 1] - q0;
      const std::int64_t k0 = p.cu_k[document], lk = p.cu_k[document + 1] - k0;
      for (std::int64_t r = 0; r < lk; ++r)
        for (std::int64_t i = 0; i < 2 * p.c.kv_heads * dim; ++i) set(dkv, p.k_at(k0 + r, 0) + i, 0, 0);
      for (std::int64_t h = 0; h < p.c.q_heads; ++h)
        for (std::int64_t r = 0; r < lq; ++r)
          row(p, q, kv, q0 + r, h, h / group, k0, std::clamp<std::int64_t>(r + 1 + lk - lq, 0, lk));
    }
    const double u = p.type == DType::bf16 ? unit_roundoff(p.type) : 0;
    for (Expected* e : {&out, &dq, &dkv})
      for (std::size_t i = 0; i < e->value.size(); ++i)
        e->tolerance[i] += u * (std::abs(e->value[i]) + e->tolerance[i]);
  }

  static void set(Expected& e, std::int64_t at, double value, double tolerance) {
    e.value[static_cast<std::size_t>(at)] = value;
    e.tolerance[static_cast<std::size_t>(at)] = tolerance;
  }
  static void add(Expected& e, std::int64_t at, double value, double tolerance) {
    e.value[static_cast<std::size_t>(at)] += value;
    e.tolerance[static_cast<std::size_t>(at)] += tolerance;
  }

  void row(const Problem& p, const std::vector<double>& q, const std::vector<double>& kv, std::int64_t n,
           std::int64_t h, std::int64_t kv_head, std::int64_t k0, std::int64_t seen) {
    const std::int64_t dim = p.c.dim, q_at = p.q_at(n, h);
    const auto at = [](const std::vector<double>& a, std::int64_t i) { return a[static_cast<std::size_t>(i)]; };
    const auto count = static_cast<std::size_t>(seen);
    std::vector<double> score(count), probability(count), dp(count), dp_size(count);
    double largest = -INFINITY, magnitude = 0, sum = 0;
    for (std::int64_t j = 0; j < seen; ++j) {
      double size = 0;
      for (std::int64_t d = 0; d < dim; ++d) {
        const double term = p.scale * at(q, q_at + d) * at(kv, p.k_at(k0 + j, kv_head) + d);
        score[static_cast<std::size_t>(j)] += term;
        size += std::abs(term);
      }
      magnitude = std::max(magnitude, size);
      largest = std::max(largest, score[static_cast<std::size_t>(j)]);
    }
    for (const double s : score) sum += std::exp(s - largest);
    const double row_lse = seen > 0 ? largest + std::log(sum) : -INFINITY;
    const double operand = p.type == DType::bf16 && test::on_gpu() ? unit_roundoff(p.type) : 0;
    const double slack = unit_roundoff(DType::f32) * (2 * std::sqrt(static_cast<double>(dim)) * magnitude +
                                                      2 * std::sqrt(static_cast<double>(seen)) + 10);
    set(lse, h * p.q_rows + n, row_lse, slack);
    double delta = 0, delta_size = 0;
    for (std::int64_t d = 0; d < dim; ++d) {
      double value = 0, size = 0;
      for (std::size_t j = 0; j < count; ++j) {
        probability[j] = std::exp(score[j] - row_lse);
        const double term = probability[j] * at(kv, p.v_at(k0 + static_cast<std::int64_t>(j), kv_head) + d);
        value += term;
        size += std::abs(term);
      }
      set(out, q_at + d, value, (slack + operand) * size);
      delta += p.dout[q_at + d] * value;
      delta_size += std::abs(p.dout[q_at + d]) * size;
      set(dq, q_at + d, 0, 0);
    }
    const double out_rounding = (p.type == DType::bf16 ? unit_roundoff(p.type) + operand : 0) * delta_size;
    for (std::int64_t j = 0; j < seen; ++j) {
      const auto i = static_cast<std::size_t>(j);
      for (std::int64_t d = 0; d < dim; ++d) {
        const double term = p.dout[q_at + d] * at(kv, p.v_at(k0 + j, kv_head) + d);
        dp[i] += term;
        dp_size[i] += std::abs(term);
      }
      const double ds = probability[i] * (dp[i] - delta);
      const double ds_error = probability[i] * (slack * (dp_size[i] + delta_size) + out_rounding);
      for (std::int64_t d = 0; d < dim; ++d) {
        const double qd = p.scale * at(q, q_at + d), kd = p.scale * at(kv, p.k_at(k0 + j, kv_head) + d);
        const double ds_rounding = operand * (std::abs(ds) + ds_error);
        add(dq, q_at + d, ds * kd, (ds_error + ds_rounding) * std::abs(kd));
        add(dkv, p.k_at(k0 + j, kv_head) + d, ds * qd, (ds_error + 3 * ds_rounding) * std::abs(qd));
        const double dv = probability[i] * p.dout[q_at + d];
        add(dkv, p.v_at(k0 + j, kv_head) + d, dv, (slack + 3 * operand) * std::abs(dv));
      }
    }
  }
};

std::vector<double> doubles(const Array& a) {
  std::vector<double> values(static_cast<std::size_t>(a.size()));
  for (std::int64_t i = 0; i < a.size(); ++i) values[static_cast<std::size_t>(i)] = a[i];
  return values;
}

void expect_matches(const Problem& p, const Reference& expected) {
  expect_close(p.out, expected.out, "out");
  expect_close(p.dq, expected.dq, "dq");
  expect_close(p.dkv, expected.dkv, "dk, dv");
  if (test::on_gpu()) return;                        // where its lse keeps which element is a backend's own affair
  for (std::int64_t i = 0; i < p.lse.size(); ++i) {  // may be -infinity, exactly
    const double value = expected.lse.value[static_cast<std::size_t>(i)];
    if (std::isinf(value))
      EXPECT_EQ(p.lse[i], value);
    else
      EXPECT_NEAR(p.lse[i], value,
                  expected.lse.tolerance[static_cast<std::size_t>(i)] + unit_roundoff(DType::f32) * std::abs(value));
  }
}

TEST_F(Attention, MatchesTheFormula) {
  for (const Case& c : cases)
    for (const DType type : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(std::string(c.name) + " " + std::string(name_of(type)));
      Problem p(c, type);
      p.run();
      expect_matches(p, Reference(p, doubles(p.q), doubles(p.kv)));
    }
}

// With less scratch the gradient is computed in parts, or in another way: never wrongly, and twice the same.
TEST_F(Attention, TheGradientMakesDoWithLessScratch) {
  const auto grad_scratch = [](const Problem& p) { return rig().ops().attention_grad_scratch(p.size()); };
  for (const Case& c : cases) {
    Problem p(c, DType::bf16);
    const std::size_t all = grad_scratch(p), least = std::min(all, grad_scratch(Problem(c, DType::f32)));
    if (all == 0) continue;
    const Reference expected(p, doubles(p.q), doubles(p.kv));
    for (std::size_t bytes = all;; bytes = std::max(least, bytes * 2 / 3)) {
      SCOPED_TRACE(std::string(c.name) + " with " + std::to_string(bytes) + " of " + std::to_string(all) + " bytes");
      Problem once(c, DType::bf16), again(c, DType::bf16);
      once.run_ops(rig(), bytes);
      again.run_ops(rig(), bytes);
      expect_matches(once, expected);
      EXPECT_EQ(once.dq.bytes(), again.dq.bytes());
      EXPECT_EQ(once.dkv.bytes(), again.dkv.bytes());
      if (bytes == least) break;
    }
  }
}

TEST_F(Attention, TwiceTheSameBits) {
  for (const Case& c : cases)
    for (const DType type : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(c.name);
      Problem once(c, type), again(c, type);
      once.run();
      again.run();
      EXPECT_EQ(once.out.bytes(), again.out.bytes());
      EXPECT_EQ(once.dq.bytes(), again.dq.bytes());
      EXPECT_EQ(once.dkv.bytes(), again.dkv.bytes());
    }
}

// The derivative of sum(dout out) along a random direction, from the formula by central differences. Truncation is of
// the order of step^2, rounding of 1e-16 / step; the gradients' own fp32 errors, 1e-7 each, dominate.
TEST_F(Attention, GradientIsTheDerivative) {
  for (const Case& c : {cases[0], cases[1], cases[4]}) {
    SCOPED_TRACE(c.name);
    Problem p(c, DType::f32);
    p.run();
    const Array q_way = Array::random(DType::f32, {p.q.size()}, 11),
                kv_way = Array::random(DType::f32, {p.kv.size()}, 12);
    const auto loss = [&](double step) {
      std::vector<double> q = doubles(p.q), kv = doubles(p.kv);
      for (std::size_t i = 0; i < q.size(); ++i) q[i] += step * q_way[static_cast<std::int64_t>(i)];
      for (std::size_t i = 0; i < kv.size(); ++i) kv[i] += step * kv_way[static_cast<std::int64_t>(i)];
      const Reference r(p, q, kv);
      double sum = 0;
      for (std::int64_t n = 0; n < p.cu_q.back(); ++n)
        for (std::int64_t i = p.q_at(n, 0); i < p.q_at(n, c.q_heads); ++i)
          sum += p.dout[i] * r.out.value[static_cast<std::size_t>(i)];
      return sum;
    };
    constexpr double step = 1e-5;
    const double expected = (loss(step) - loss(-step)) / (2 * step);
    double got = 0;
    for (std::int64_t n = 0; n < p.cu_q.back(); ++n)
      for (std::int64_t i = p.q_at(n, 0); i < p.q_at(n, c.q_heads); ++i) got += p.dq[i] * q_way[i];
    for (std::int64_t n = 0; n < p.cu_k.back(); ++n)
      for (std::int64_t i = p.k_at(n, 0); i < p.v_at(n, c.kv_heads); ++i) got += p.dkv[i] * kv_way[i];
    EXPECT_GT(std::abs(expected), 0.1);
    EXPECT_NEAR(got, expected, 1e-4 + 1e-5 * std::abs(expected));
  }
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
        EXPECT_EQ(one.out.bytes(), many.out.bytes());
        EXPECT_EQ(one.lse.bytes(), many.lse.bytes());
        EXPECT_EQ(one.dq.bytes(), many.dq.bytes());
        EXPECT_EQ(one.dkv.bytes(), many.dkv.bytes());
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
    check_attention(p.q_heads(p.out), p.lse.tensor(), q, k, p.v_heads(p.kv), s);
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
  EXPECT_THROW(
      attention_forward(pool, p.q_heads(p.out), p.lse.tensor(), p.q_heads(p.q), p.k_heads(p.kv), p.v_heads(p.kv), s),
      Bug);
}

TEST_F(Attention, OpsOnAStreamDoAsTheFunctions) {
  SO_CPU_ONLY("the CPU's functions");
  Problem direct(cases[0], DType::f32), queued(cases[0], DType::f32);
  direct.run_on_cpu(1);
  queued.run();
  EXPECT_EQ(direct.out.bytes(), queued.out.bytes());
  EXPECT_EQ(direct.lse.bytes(), queued.lse.bytes());
  EXPECT_EQ(direct.dq.bytes(), queued.dq.bytes());
  EXPECT_EQ(direct.dkv.bytes(), queued.dkv.bytes());
}

}  // namespace
}  // namespace so
