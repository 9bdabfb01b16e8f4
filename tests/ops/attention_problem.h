// Attention as its formula has it, in double, and the arrays of one problem, for the tests of attention.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "ops/arrays.h"
#include "ops/cpu/attention.h"
#include "support/rig.h"
#include "support/sanitized.h"

namespace so::testing {

struct AttentionCase {
  const char* name;
  std::int64_t q_heads, kv_heads, dim;
  std::vector<std::pair<std::int32_t, std::int32_t>> documents;  // rows of queries, of keys
  double magnitude = 1;                                          // of q: 100 makes scores in the thousands
  // Elements of a row that belong to no head, and rows that belong to no document. Only heads that begin on 16-byte
  // boundaries run on a GPU's matrix units, and only documents of one length that fill all rows are its dense case.
  std::int64_t margin = 3, spare_rows = 2;
  std::int64_t window = 0;
  std::optional<double> sinks = {};  // about so much; none without
  bool any_order = false;            // the gradient may be added up so

  AttentionCase windowed(std::int64_t keys) const {
    AttentionCase changed = *this;
    changed.window = keys;
    return changed;
  }
  AttentionCase with_sinks(double about) const {
    AttentionCase changed = *this;
    changed.sinks = about;
    return changed;
  }
  AttentionCase in_any_order() const {
    AttentionCase changed = *this;
    changed.any_order = true;
    return changed;
  }
};

// The device under test, made once for all tests of a suite.
class AttentionTest : public ::testing::Test {
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
struct AttentionProblem {
  AttentionCase c;
  DType type;
  std::int64_t margin, q_rows, k_rows, q_width, kv_width;
  std::vector<std::int32_t> cu_q = {0}, cu_k = {0};
  Array q, kv, dout, cu_q_array, cu_k_array;
  Array sinks, dsinks;
  Array out, lse, dq, dkv;
  float scale;
  Accumulate dsinks_mode = Accumulate::overwrite;

  AttentionProblem(const AttentionCase& cc, DType t)
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
        sinks(t, {0}),
        dsinks(t, {0}),
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
    if (c.sinks) {
      sinks = Array::random(type, {c.q_heads}, 4);
      for (std::int64_t h = 0; h < c.q_heads; ++h) sinks.set(h, sinks[h] + *c.sinks);
      dsinks = Array::filled(type, {c.q_heads}, 7);
    }
    out = Array::filled(type, {q_rows, q_width}, 7);
    lse = Array::filled(DType::f32, {c.q_heads, q_rows}, 7);
    dq = Array::filled(type, {q_rows, q_width}, 7);
    dkv = Array::filled(type, {k_rows, kv_width}, 7);
  }

  // These take an Array or its Mirror.
  Heads q_heads(auto& a) const { return {a.tensor(), margin, c.q_heads, c.dim}; }
  Heads k_heads(auto& a) const { return {a.tensor(), 0, c.kv_heads, c.dim}; }
  Heads v_heads(auto& a) const { return {a.tensor(), c.kv_heads * c.dim, c.kv_heads, c.dim}; }
  AttentionSpans spans() {
    AttentionSpans s;
    s.cu_q = cu_q_array.tensor();
    s.cu_k = cu_k_array.tensor();
    s.starts = cu_q;
    s.documents = static_cast<std::int64_t>(c.documents.size());
    for (const auto& [lq, lk] : c.documents) {
      s.max_q = std::max<std::int64_t>(s.max_q, lq);
      s.max_k = std::max<std::int64_t>(s.max_k, lk);
    }
    s.scale = scale;
    s.window = c.window;
    s.any_order = c.any_order;
    if (c.sinks) s.sinks = sinks.tensor();
    return s;
  }
  std::int64_t q_at(std::int64_t row, std::int64_t head) const { return row * q_width + margin + head * c.dim; }
  std::int64_t k_at(std::int64_t row, std::int64_t head) const { return row * kv_width + head * c.dim; }
  std::int64_t v_at(std::int64_t row, std::int64_t head) const { return k_at(row, c.kv_heads + head); }

  AttentionSize size() const {
    std::int64_t longest = 0;
    for (const auto& [queries, keys] : c.documents) longest = std::max<std::int64_t>(longest, queries);
    const auto documents = static_cast<std::int64_t>(c.documents.size());
    return {q_rows,  k_rows, c.q_heads, c.kv_heads,          c.dim,      documents,
            longest, type,   c.window,  c.sinks.has_value(), c.any_order};
  }

  // By the device under test.
  void run() { run_ops(AttentionTest::rig(), AttentionTest::rig().ops().memory().attention_grad(size())); }

  // By ops on a stream, with so much scratch for the gradient.
  void run_ops(test::Rig& rig, std::size_t grad_scratch) {
    Stream& stream = rig.stream();
    Mirror mq(stream, q), mkv(stream, kv), mdout(stream, dout), mcu_q(stream, cu_q_array), mcu_k(stream, cu_k_array),
        mout(stream, out), mlse(stream, lse), mdq(stream, dq), mdkv(stream, dkv), msinks(stream, sinks),
        mdsinks(stream, dsinks);
    AttentionSpans s = spans();
    s.cu_q = mcu_q.tensor();
    s.cu_k = mcu_k.tensor();
    if (c.sinks) s.sinks = msinks.tensor();
    const std::size_t bytes = rig.ops().memory().attention(size());
    Buffer scratch = rig.device().allocate(MemoryKind::device, std::max(bytes, grad_scratch), "attention scratch");
    const auto part = [&](std::size_t n) {
      return n > 0 ? Tensor(scratch.data(), DType::u8, {static_cast<std::int64_t>(n)}) : Tensor();
    };
    rig.ops().attention(stream, {.out = q_heads(mout),
                                 .lse = mlse.tensor(),
                                 .q = q_heads(mq),
                                 .k = k_heads(mkv),
                                 .v = v_heads(mkv),
                                 .spans = s,
                                 .scratch = part(bytes)});
    rig.ops().attention_grad(stream, {.dq = q_heads(mdq),
                                      .dk = k_heads(mdkv),
                                      .dv = v_heads(mdkv),
                                      .dsinks = c.sinks ? mdsinks.tensor() : Tensor(),
                                      .dsinks_mode = dsinks_mode,
                                      .dout = q_heads(mdout),
                                      .forward = {.out = q_heads(mout),
                                                  .lse = mlse.tensor(),
                                                  .q = q_heads(mq),
                                                  .k = k_heads(mkv),
                                                  .v = v_heads(mkv),
                                                  .spans = s},
                                      .scratch = part(grad_scratch)});
    for (Mirror* m : {&mout, &mlse, &mdq, &mdkv, &mdsinks}) m->fetch();
  }

  // The calls on the arrays of the host.
  Ops::Attention call(const AttentionSpans& s) {
    return {.out = q_heads(out), .lse = lse.tensor(), .q = q_heads(q), .k = k_heads(kv), .v = v_heads(kv), .spans = s};
  }
  Ops::AttentionGrad gradient_call(const AttentionSpans& s, const Tensor& ds) {
    return {.dq = q_heads(dq),
            .dk = k_heads(dkv),
            .dv = v_heads(dkv),
            .dsinks = ds,
            .dsinks_mode = dsinks_mode,
            .dout = q_heads(dout),
            .forward = call(s)};
  }

  // By the CPU's functions directly.
  void run_on_cpu(int threads) {
    ThreadPool pool = make_pool(threads);
    const AttentionSpans s = spans();
    const Ops::AttentionGrad gradient = gradient_call(s, c.sinks ? dsinks.tensor() : Tensor());
    check_attention_grad(gradient);
    attention_forward(pool, gradient.forward);
    attention_backward(pool, gradient);
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
// head may be rounded before they are added up (twice more: of each head, and of some of the heads), as may dq of some
// of the keys.
//
// A sink is one more score, without an error of its own but that of the exponential; a GPU may scale `out` by what the
// sink leaves it after having rounded it (another `operand`).
struct AttentionReference {
  Expected out, lse, dq, dkv, dsinks;

  AttentionReference(const AttentionProblem& p, const std::vector<double>& q, const std::vector<double>& kv,
                     const std::vector<double>& sinks)
      : out(p.out.size()), lse(p.lse.size()), dq(p.dq.size()), dkv(p.dkv.size()), dsinks(p.dsinks.size()) {
    for (Expected* e : {&out, &lse, &dq, &dkv}) std::fill(e->value.begin(), e->value.end(), 7.0);
    const std::int64_t dim = p.c.dim, group = p.c.q_heads / p.c.kv_heads;
    for (std::size_t document = 0; document < p.c.documents.size(); ++document) {
      const std::int64_t q0 = p.cu_q[document], lq = p.cu_q[document + 1] - q0;
      const std::int64_t k0 = p.cu_k[document], lk = p.cu_k[document + 1] - k0;
      for (std::int64_t r = 0; r < lk; ++r)
        for (std::int64_t i = 0; i < 2 * p.c.kv_heads * dim; ++i) set(dkv, p.k_at(k0 + r, 0) + i, 0, 0);
      for (std::int64_t h = 0; h < p.c.q_heads; ++h)
        for (std::int64_t r = 0; r < lq; ++r)
          row(p, q, kv, sinks, q0 + r, h, h / group, k0, std::clamp<std::int64_t>(r + 1 + lk - lq, 0, lk));
    }
    for (std::int64_t h = 0; h < p.dsinks.size(); ++h) {
      if (p.dsinks_mode == Accumulate::add) add(dsinks, h, p.dsinks[h], 0);
      const auto i = static_cast<std::size_t>(h);
      dsinks.tolerance[i] += unit_roundoff(p.dsinks.type()) * (std::abs(dsinks.value[i]) + dsinks.tolerance[i]);
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

  struct Dot {
    double sum = 0, magnitude = 0;  // of the terms, and of their magnitudes
  };
  // These two take nearly all of the time of the tests that compare with the formula.
  SO_NOT_SANITIZED static Dot dot(const std::vector<double>& a, const double* b) {
    const double* const first = a.data();
    const std::size_t count = a.size();
    Dot result;
    for (std::size_t i = 0; i < count; ++i) {
      const double term = first[i] * b[i];
      result.sum += term;
      result.magnitude += std::fabs(term);
    }
    return result;
  }

  // A head's part of a row, and what it may be off.
  struct Part {
    Part(std::vector<double>& values, std::vector<double>& off) : value(values.data()), tolerance(off.data()) {}
    Part(Expected& e, std::int64_t at) : value(e.value.data() + at), tolerance(e.tolerance.data() + at) {}
    // Adds factor scale x, which is off by error |scale x|.
    SO_NOT_SANITIZED void add(double factor, double error, double scale, const double* x, std::size_t count) const {
      for (std::size_t i = 0; i < count; ++i) {
        const double term = scale * x[i];
        value[i] += factor * term;
        tolerance[i] += error * std::fabs(term);
      }
    }
    double *value, *tolerance;
  };

  // The query row n, which sees the keys before `end`, counted from the document's first.
  void row(const AttentionProblem& p, const std::vector<double>& q, const std::vector<double>& kv,
           const std::vector<double>& sinks, std::int64_t n, std::int64_t h, std::int64_t kv_head, std::int64_t first,
           std::int64_t end) {
    const std::int64_t begin = p.c.window > 0 ? std::max<std::int64_t>(end - p.c.window, 0) : 0;
    const std::int64_t k0 = first + begin, seen = end - begin;
    const std::int64_t dim = p.c.dim, q_at = p.q_at(n, h);
    const auto at = [](const std::vector<double>& a, std::int64_t i) { return a[static_cast<std::size_t>(i)]; };
    const auto count = static_cast<std::size_t>(seen);
    std::vector<double> score(count), probability(count);
    const auto k_of = [&](std::size_t j) { return p.k_at(k0 + static_cast<std::int64_t>(j), kv_head); };
    const auto v_of = [&](std::size_t j) { return p.v_at(k0 + static_cast<std::int64_t>(j), kv_head); };
    const auto width = static_cast<std::size_t>(dim);
    std::vector<double> query(width), dout(width), value(width), size(width);
    for (std::int64_t d = 0; d < dim; ++d) {
      query[static_cast<std::size_t>(d)] = p.scale * at(q, q_at + d);
      dout[static_cast<std::size_t>(d)] = p.dout[q_at + d];
    }
    const double sink = sinks.empty() ? -INFINITY : at(sinks, h);
    double largest = sink, magnitude = sinks.empty() ? 0 : std::abs(sink), sum = 0;
    for (std::size_t j = 0; j < count; ++j) {
      const Dot with_key = dot(query, kv.data() + k_of(j));
      score[j] = with_key.sum;
      magnitude = std::max(magnitude, with_key.magnitude);
      largest = std::max(largest, score[j]);
    }
    if (!sinks.empty()) sum = std::exp(sink - largest);
    for (const double s : score) sum += std::exp(s - largest);
    const double row_lse = largest > -INFINITY ? largest + std::log(sum) : -INFINITY;
    const double operand = p.type == DType::bf16 && test::on_gpu() ? unit_roundoff(p.type) : 0;
    const double slack = unit_roundoff(DType::f32) * (2 * std::sqrt(static_cast<double>(dim)) * magnitude +
                                                      2 * std::sqrt(static_cast<double>(seen)) + 10);
    set(lse, h * p.q_rows + n, row_lse, slack);
    for (std::size_t j = 0; j < count; ++j) {
      probability[j] = std::exp(score[j] - row_lse);
      Part(value, size).add(1, 1, probability[j], kv.data() + v_of(j), width);
    }
    double delta = 0, delta_size = 0;
    for (std::size_t d = 0; d < width; ++d) {
      const std::int64_t element = q_at + static_cast<std::int64_t>(d);
      set(out, element, value[d], (slack + (sinks.empty() ? 1 : 2) * operand) * size[d]);
      delta += dout[d] * value[d];
      delta_size += std::abs(dout[d]) * size[d];
      set(dq, element, 0, 0);
    }
    const double out_rounding =
        (p.type == DType::bf16 ? unit_roundoff(p.type) + (sinks.empty() ? 1 : 2) * operand : 0) * delta_size;
    if (!sinks.empty()) {
      // Sums over rows are of 64 in fp32, say, whose errors are added to the slack.
      const double share = std::exp(sink - row_lse), error = (2 * slack + 64 * unit_roundoff(DType::f32)) * delta_size;
      add(dsinks, h, -share * delta, share * (error + out_rounding));
    }
    for (std::size_t j = 0; j < count; ++j) {
      const double* const key = kv.data() + k_of(j);
      const Dot dp = dot(dout, kv.data() + v_of(j));
      const double ds = probability[j] * (dp.sum - delta);
      const double ds_error = probability[j] * (slack * (dp.magnitude + delta_size) + out_rounding);
      const double ds_rounding = operand * (std::abs(ds) + ds_error);
      const double dq_error = ds_error + 2 * ds_rounding, dk_error = ds_error + 3 * ds_rounding,
                   dv_error = slack + 3 * operand;
      Part(dq, q_at).add(ds, dq_error, p.scale, key, width);
      Part(dkv, k_of(j)).add(ds, dk_error, 1, query.data(), width);
      Part(dkv, v_of(j)).add(1, dv_error, probability[j], dout.data(), width);
    }
  }
};

inline std::vector<double> doubles(const Array& a) {
  std::vector<double> values(static_cast<std::size_t>(a.size()));
  for (std::int64_t i = 0; i < a.size(); ++i) values[static_cast<std::size_t>(i)] = a[i];
  return values;
}

inline void expect_matches(const AttentionProblem& p, const AttentionReference& expected) {
  expect_close(p.out, expected.out, "out");
  expect_close(p.dq, expected.dq, "dq");
  expect_close(p.dkv, expected.dkv, "dk, dv");
  expect_close(p.dsinks, expected.dsinks, "dsinks");
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

// Takes the problem as it was made: call it before the problem has run, if dsinks is added to.
inline AttentionReference reference(const AttentionProblem& p) {
  return {p, doubles(p.q), doubles(p.kv), doubles(p.sinks)};
}

inline void expect_same_bits(const AttentionProblem& a, const AttentionProblem& b) {
  EXPECT_EQ(a.out.bytes(), b.out.bytes());
  EXPECT_EQ(a.lse.bytes(), b.lse.bytes());
  EXPECT_EQ(a.dq.bytes(), b.dq.bytes());
  EXPECT_EQ(a.dkv.bytes(), b.dkv.bytes());
  EXPECT_EQ(a.dsinks.bytes(), b.dsinks.bytes());
}

// The derivative of sum(dout out) along a random direction, from the formula by central differences. Truncation is of
// the order of step^2, rounding of 1e-16 / step; the gradients' own fp32 errors, 1e-7 each, dominate.
inline void expect_derivative(const AttentionCase& c) {
  SCOPED_TRACE(c.name);
  AttentionProblem p(c, DType::f32);
  p.run();
  const auto way = [](const Array& a, unsigned seed) { return Array::random(DType::f32, {a.size()}, seed); };
  const Array q_way = way(p.q, 11), kv_way = way(p.kv, 12), sinks_way = way(p.sinks, 13);
  const auto moved = [](const Array& a, double step, const Array& along) {
    std::vector<double> values = doubles(a);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += step * along[static_cast<std::int64_t>(i)];
    return values;
  };
  const auto loss = [&](double step) {
    const AttentionReference r(p, moved(p.q, step, q_way), moved(p.kv, step, kv_way), moved(p.sinks, step, sinks_way));
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
  for (std::int64_t h = 0; h < p.dsinks.size(); ++h) got += p.dsinks[h] * sinks_way[h];
  EXPECT_GT(std::abs(expected), 0.1);
  EXPECT_NEAR(got, expected, 1e-4 + 1e-5 * std::abs(expected));
}

}  // namespace so::testing
