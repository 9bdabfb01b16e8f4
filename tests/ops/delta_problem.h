// The gated delta rule as its formula has it, in double, and the tensors of one problem, for the tests of delta_rule.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/on_gpu.h"
#include "support/random_tensors.h"
#include "support/rig.h"
#include "support/sanitized.h"

namespace so::test {

struct DeltaCase {
  std::vector<std::int64_t> documents;  // their lengths
  std::int64_t k_heads, v_heads, k_dim, v_dim;
  // Columns that belong to no head: before the first, and between two of them.
  std::int64_t margin = 0, gap = 0;

  std::int64_t rows() const {
    std::int64_t sum = 0;
    for (const std::int64_t length : documents) sum += length;
    return sum;
  }
  std::string name(DType dtype) const {
    return fmt::format("{} documents, {} rows, {}/{} heads of {}x{}, margin {}, gap {}, {}", documents.size(), rows(),
                       k_heads, v_heads, k_dim, v_dim, margin, gap, name_of(dtype));
  }
};

using DeltaValues = std::vector<double>;

// Dense arrays [N, heads, dim], [N, v_heads].
struct DeltaArrays {
  DeltaValues q, k, v, decay, rate, dout;
};
struct DeltaResults {
  DeltaValues out, dq, dk, dv, ddecay, drate;
  DeltaValues state;  // [v_heads, k_dim, v_dim] after the last document
};

// Normalises rows of `dim`; the factor of each is returned.
inline DeltaValues normalise_rows(DeltaValues& x, std::int64_t dim, double scale) {
  DeltaValues factors;
  for (std::size_t at = 0; at < x.size(); at += static_cast<std::size_t>(dim)) {
    double squares = 1e-6;
    for (std::size_t i = at; i < at + static_cast<std::size_t>(dim); ++i) squares += x[i] * x[i];
    factors.push_back(scale / std::sqrt(squares));
    for (std::size_t i = at; i < at + static_cast<std::size_t>(dim); ++i) x[i] *= factors.back();
  }
  return factors;
}

// The gradient of what was normalised to y, in place.
inline void through_norms(DeltaValues& dy, const DeltaValues& y, const DeltaValues& factors, std::int64_t dim,
                          double scale) {
  for (std::size_t row = 0; row < factors.size(); ++row) {
    const std::size_t at = row * static_cast<std::size_t>(dim);
    double dot = 0;
    for (std::size_t i = at; i < at + static_cast<std::size_t>(dim); ++i) dot += y[i] * dy[i];
    for (std::size_t i = at; i < at + static_cast<std::size_t>(dim); ++i)
      dy[i] = factors[row] * (dy[i] - y[i] * dot / (scale * scale));
  }
}

// One document and value head. Rows of q and k are k_stride apart, of v and out v_stride, the gates' v_heads.
struct DeltaHead {
  const DeltaCase& c;
  DeltaArrays& in;  // q and k normalised
  DeltaResults& to;
  std::int64_t begin, length, head;

  std::size_t k_at(std::int64_t n) const {
    return static_cast<std::size_t>(((begin + n) * c.k_heads + head / (c.v_heads / c.k_heads)) * c.k_dim);
  }
  std::size_t v_at(std::int64_t n) const {
    return static_cast<std::size_t>(((begin + n) * c.v_heads + head) * c.v_dim);
  }
  std::size_t gate_at(std::int64_t n) const { return static_cast<std::size_t>((begin + n) * c.v_heads + head); }

  // states[n] is S before token n. Returns them.
  SO_NOT_SANITIZED std::vector<DeltaValues> forward() const {
    const auto k_dim = static_cast<std::size_t>(c.k_dim), v_dim = static_cast<std::size_t>(c.v_dim);
    std::vector<DeltaValues> states(static_cast<std::size_t>(length) + 1, DeltaValues(k_dim * v_dim, 0.0));
    for (std::int64_t n = 0; n < length; ++n) {
      const double* before = states[static_cast<std::size_t>(n)].data();
      double* after = states[static_cast<std::size_t>(n) + 1].data();
      const double left = std::exp(in.decay[gate_at(n)]), rate = in.rate[gate_at(n)];
      const double *k = &in.k[k_at(n)], *q = &in.q[k_at(n)], *v = &in.v[v_at(n)];
      DeltaValues reads(v_dim, 0.0);
      double* read = reads.data();
      for (std::size_t i = 0; i < k_dim; ++i)
        for (std::size_t j = 0; j < v_dim; ++j) read[j] += left * before[i * v_dim + j] * k[i];
      double* out = &to.out[v_at(n)];
      for (std::size_t j = 0; j < v_dim; ++j) out[j] = 0;
      for (std::size_t i = 0; i < k_dim; ++i)
        for (std::size_t j = 0; j < v_dim; ++j) {
          after[i * v_dim + j] = left * before[i * v_dim + j] + k[i] * rate * (v[j] - read[j]);
          out[j] += after[i * v_dim + j] * q[i];
        }
    }
    return states;
  }

  SO_NOT_SANITIZED void backward(const std::vector<DeltaValues>& states) const {
    const auto k_dim = static_cast<std::size_t>(c.k_dim), v_dim = static_cast<std::size_t>(c.v_dim);
    DeltaValues dstates(k_dim * v_dim, 0.0);
    double* dstate = dstates.data();
    for (std::int64_t n = length - 1; n >= 0; --n) {
      const double *before = states[static_cast<std::size_t>(n)].data(),
                   *after = states[static_cast<std::size_t>(n) + 1].data();
      const double left = std::exp(in.decay[gate_at(n)]), rate = in.rate[gate_at(n)];
      const double *k = &in.k[k_at(n)], *q = &in.q[k_at(n)], *v = &in.v[v_at(n)], *dout = &in.dout[v_at(n)];
      double *dq = &to.dq[k_at(n)], *dk = &to.dk[k_at(n)];
      DeltaValues reads(v_dim, 0.0), learned_gradients(v_dim, 0.0);
      double *read = reads.data(), *dlearned = learned_gradients.data(), *dv = &to.dv[v_at(n)];
      for (std::size_t i = 0; i < k_dim; ++i)
        for (std::size_t j = 0; j < v_dim; ++j) {
          dq[i] += after[i * v_dim + j] * dout[j];
          dstate[i * v_dim + j] += q[i] * dout[j];
          read[j] += left * before[i * v_dim + j] * k[i];
          dlearned[j] += dstate[i * v_dim + j] * k[i];
        }
      double drate = 0, ddecay = 0;
      for (std::size_t j = 0; j < v_dim; ++j) {
        drate += dlearned[j] * (v[j] - read[j]);
        dv[j] = rate * dlearned[j];
      }
      for (std::size_t i = 0; i < k_dim; ++i)
        for (std::size_t j = 0; j < v_dim; ++j) {
          double& d = dstate[i * v_dim + j];
          const double decayed = left * before[i * v_dim + j];
          dk[i] += d * rate * (v[j] - read[j]) - decayed * rate * dlearned[j];
          d -= k[i] * rate * dlearned[j];
          ddecay += d * decayed;
          d *= left;
        }
      to.drate[gate_at(n)] = drate;
      to.ddecay[gate_at(n)] = ddecay;
    }
  }
};

inline DeltaResults delta_reference(const DeltaCase& c, DeltaArrays in, bool gradient = true) {
  const double scale = 1 / std::sqrt(static_cast<double>(c.k_dim));
  const DeltaValues q_factors = normalise_rows(in.q, c.k_dim, scale), k_factors = normalise_rows(in.k, c.k_dim, 1);
  DeltaResults to;
  to.out.resize(in.v.size()), to.dv.resize(in.v.size());
  to.dq.resize(in.q.size()), to.dk.resize(in.k.size());
  to.ddecay.resize(in.decay.size()), to.drate.resize(in.rate.size());
  std::int64_t begin = 0;
  for (const std::int64_t length : c.documents) {
    to.state.clear();
    for (std::int64_t head = 0; head < c.v_heads; ++head) {
      const DeltaHead one{c, in, to, begin, length, head};
      const std::vector<DeltaValues> states = one.forward();
      if (gradient) one.backward(states);
      to.state.insert(to.state.end(), states.back().begin(), states.back().end());
    }
    begin += length;
  }
  through_norms(to.dq, in.q, q_factors, c.k_dim, scale);
  through_norms(to.dk, in.k, k_factors, c.k_dim, 1);
  return to;
}

inline DeltaArrays random_delta_arrays(const DeltaCase& c, unsigned seed) {
  const auto count = [&](std::int64_t heads, std::int64_t dim) {
    return static_cast<std::size_t>(c.rows() * heads * dim);
  };
  DeltaArrays a{
      random_values(count(c.k_heads, c.k_dim), seed, 2),  random_values(count(c.k_heads, c.k_dim), seed + 1, 2),
      random_values(count(c.v_heads, c.v_dim), seed + 2), random_values(count(c.v_heads, 1), seed + 3),
      random_values(count(c.v_heads, 1), seed + 4),       random_values(count(c.v_heads, c.v_dim), seed + 5)};
  // Most states live for some tens of tokens, some for ever, and some die at once.
  for (std::size_t i = 0; i < a.decay.size(); ++i)
    a.decay[i] = i % 11 == 3 ? 0 : i % 47 == 5 ? -30 : 0.05 * (a.decay[i] - 1);
  for (double& rate : a.rate) rate = 0.5 * (rate + 1);
  return a;
}

// The tensors of a case: q, k and v side by side in rows wider than they are, as a fused projection gives them.
class DeltaProblem {
 public:
  DeltaProblem(Stream& s, const DeltaCase& case_, DType dtype_, const DeltaArrays& in)
      : c(case_), dtype(dtype_), stream_(s) {
    const std::int64_t rows = c.rows();
    qkv = TestTensor(s, dtype, {rows, width()}, laid_out(in));
    dqkv = random_tensor(s, dtype, {rows, width()}, 31);
    out = random_tensor(s, dtype, {rows, v_width()}, 32);
    DeltaValues douts = random_values(static_cast<std::size_t>(rows * v_width()), 33);
    put(douts, in.dout, v_width(), c.margin, c.v_heads, c.v_dim);
    dout = TestTensor(s, dtype, {rows, v_width()}, douts);
    decay = TestTensor(s, DType::f32, {rows, c.v_heads}, in.decay);
    rate = TestTensor(s, DType::f32, {rows, c.v_heads}, in.rate);
    ddecay = TestTensor(s, DType::f32, {rows, c.v_heads});
    drate = TestTensor(s, DType::f32, {rows, c.v_heads});
    DeltaValues bounds{0};
    for (const std::int64_t length : c.documents) bounds.push_back(bounds.back() + static_cast<double>(length));
    starts = TestTensor(s, DType::i32, {static_cast<std::int64_t>(bounds.size())}, bounds);
  }

  Heads q(Tensor rows) const { return heads(rows, c.margin, c.k_heads, c.k_dim); }
  Heads k(Tensor rows) const { return heads(rows, c.margin + span(c.k_heads, c.k_dim), c.k_heads, c.k_dim); }
  Heads v(Tensor rows) const { return heads(rows, c.margin + 2 * span(c.k_heads, c.k_dim), c.v_heads, c.v_dim); }
  Heads o(Tensor rows) const { return heads(rows, c.margin, c.v_heads, c.v_dim); }

  DeltaSize size() const {
    return {c.rows(), static_cast<std::int64_t>(c.documents.size()), c.k_heads, c.v_heads, c.k_dim, c.v_dim, dtype};
  }
  Ops::DeltaRule call(Tensor scratch = {}, Tensor state = {}) const {
    return {.out = o(out),
            .q = q(qkv),
            .k = k(qkv),
            .v = v(qkv),
            .decay = decay,
            .rate = rate,
            .documents = {starts, static_cast<std::int64_t>(c.documents.size())},
            .state = state,
            .scratch = scratch};
  }
  Ops::DeltaRuleGrad gradient_call(Tensor scratch = {}) const {
    return {.dq = q(dqkv),
            .dk = k(dqkv),
            .dv = v(dqkv),
            .ddecay = ddecay,
            .drate = drate,
            .dout = o(dout),
            .forward = call(),
            .scratch = scratch};
  }
  // With as much scratch as the device's ops ask for.
  void run(Rig& rig, bool gradient = true) const {
    const OpsMemory& memory = rig.ops().memory();
    const std::size_t bytes[2] = {memory.delta_rule(size()), memory.delta_rule_grad(size())};
    const Buffer scratch =
        rig.device().allocate(MemoryKind::device, std::max({bytes[0], bytes[1], std::size_t{1}}), "delta scratch");
    const auto part = [&](std::size_t n) {
      return n > 0 ? Tensor(scratch.data(), DType::u8, {static_cast<std::int64_t>(n)}) : Tensor();
    };
    rig.ops().delta_rule(stream_, call(part(bytes[0])));
    if (gradient) rig.ops().delta_rule_grad(stream_, gradient_call(part(bytes[1])));
    stream_.synchronize();
  }

  // What the op reads, after the rounding to the dtype.
  DeltaArrays inputs() const {
    const DeltaValues rows = qkv.values(stream_);
    return {get(rows, width(), q(qkv)), get(rows, width(), k(qkv)), get(rows, width(), v(qkv)),
            decay.values(stream_),      rate.values(stream_),       get(dout.values(stream_), v_width(), o(dout))};
  }
  DeltaResults results() const {
    const DeltaValues rows = dqkv.values(stream_);
    return {get(out.values(stream_), v_width(), o(out)),
            get(rows, width(), q(dqkv)),
            get(rows, width(), k(dqkv)),
            get(rows, width(), v(dqkv)),
            ddecay.values(stream_),
            drate.values(stream_),
            {}};
  }
  // The columns of no head.
  DeltaValues beside() const {
    DeltaValues rows = dqkv.values(stream_), outs = out.values(stream_);
    for (const Heads& h : {q(dqkv), k(dqkv), v(dqkv)}) put_all(rows, 0, width(), h);
    put_all(outs, 0, v_width(), o(out));
    rows.insert(rows.end(), outs.begin(), outs.end());
    return rows;
  }

  DeltaCase c;
  DType dtype;
  TestTensor qkv, dqkv, out, dout, decay, rate, ddecay, drate, starts;

 private:
  std::int64_t span(std::int64_t count, std::int64_t dim) const { return count * (dim + c.gap); }
  std::int64_t width() const { return c.margin + 2 * span(c.k_heads, c.k_dim) + span(c.v_heads, c.v_dim); }
  std::int64_t v_width() const { return c.margin + span(c.v_heads, c.v_dim); }
  Heads heads(Tensor rows, std::int64_t offset, std::int64_t count, std::int64_t dim) const {
    return {rows, offset, count, dim, c.gap > 0 ? dim + c.gap : 0};
  }
  DeltaValues laid_out(const DeltaArrays& in) const {
    DeltaValues rows = random_values(static_cast<std::size_t>(c.rows() * width()), 30);
    put(rows, in.q, width(), c.margin, c.k_heads, c.k_dim);
    put(rows, in.k, width(), c.margin + span(c.k_heads, c.k_dim), c.k_heads, c.k_dim);
    put(rows, in.v, width(), c.margin + 2 * span(c.k_heads, c.k_dim), c.v_heads, c.v_dim);
    return rows;
  }
  template <class F>
  void each(std::int64_t row_width, std::int64_t offset, std::int64_t count, std::int64_t dim, const F& f) const {
    std::size_t dense = 0;
    for (std::int64_t n = 0; n < c.rows(); ++n)
      for (std::int64_t h = 0; h < count; ++h)
        for (std::int64_t d = 0; d < dim; ++d)
          f(static_cast<std::size_t>(n * row_width + offset + h * (dim + c.gap) + d), dense++);
  }
  void put(DeltaValues& rows, const DeltaValues& dense, std::int64_t row_width, std::int64_t offset, std::int64_t count,
           std::int64_t dim) const {
    each(row_width, offset, count, dim, [&](std::size_t at, std::size_t i) { rows[at] = dense[i]; });
  }
  void put_all(DeltaValues& rows, double value, std::int64_t row_width, const Heads& h) const {
    each(row_width, h.offset, h.heads, h.head_dim, [&](std::size_t at, std::size_t) { rows[at] = value; });
  }
  DeltaValues get(const DeltaValues& rows, std::int64_t row_width, const Heads& h) const {
    DeltaValues dense(static_cast<std::size_t>(c.rows() * h.heads * h.head_dim));
    each(row_width, h.offset, h.heads, h.head_dim, [&](std::size_t at, std::size_t i) { dense[i] = rows[at]; });
    return dense;
  }

  Stream& stream_;
};

}  // namespace so::test
