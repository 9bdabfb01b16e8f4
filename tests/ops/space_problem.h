// A state space as its formula has it, in double, and the tensors of one problem, for the tests of state_space.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "support/on_gpu.h"
#include "support/random_tensors.h"
#include "support/rig.h"
#include "support/sanitized.h"

namespace so::test {

struct SpaceCase {
  std::vector<std::int64_t> documents;  // their lengths
  std::int64_t groups, heads, k_dim, v_dim;
  // Columns that belong to no head: before the first, and between two of them.
  std::int64_t margin = 0, gap = 0;

  std::int64_t rows() const {
    std::int64_t sum = 0;
    for (const std::int64_t length : documents) sum += length;
    return sum;
  }
  std::string name(DType dtype) const {
    return fmt::format("{} documents, {} rows, {} heads in {} groups, {}x{}, margin {}, gap {}, {}", documents.size(),
                       rows(), heads, groups, k_dim, v_dim, margin, gap, name_of(dtype));
  }
};

using SpaceValues = std::vector<double>;

// Dense arrays [N, heads or groups, dim], [N, heads], [heads].
struct SpaceArrays {
  SpaceValues x, b, c, decay, step, dout, skip;
};
struct SpaceResults {
  SpaceValues out, dx, db, dc, ddecay, dstep, dskip;
  SpaceValues state;  // [heads, k_dim, v_dim] after the last document
};

// One document and head.
struct SpaceReference {
  const SpaceCase& c;
  const SpaceArrays& in;
  SpaceResults& to;
  std::int64_t begin, length, head;

  std::size_t k_at(std::int64_t n) const {
    return static_cast<std::size_t>(((begin + n) * c.groups + head / (c.heads / c.groups)) * c.k_dim);
  }
  std::size_t v_at(std::int64_t n) const { return static_cast<std::size_t>(((begin + n) * c.heads + head) * c.v_dim); }
  std::size_t gate_at(std::int64_t n) const { return static_cast<std::size_t>((begin + n) * c.heads + head); }

  // states[n] is S before token n. Returns them.
  SO_NOT_SANITIZED std::vector<SpaceValues> forward() const {
    const auto k_dim = static_cast<std::size_t>(c.k_dim), v_dim = static_cast<std::size_t>(c.v_dim);
    std::vector<SpaceValues> states(static_cast<std::size_t>(length) + 1, SpaceValues(k_dim * v_dim, 0.0));
    for (std::int64_t n = 0; n < length; ++n) {
      const double* before = states[static_cast<std::size_t>(n)].data();
      double *after = states[static_cast<std::size_t>(n) + 1].data(), *out = &to.out[v_at(n)];
      const double *b = &in.b[k_at(n)], *read = &in.c[k_at(n)], *x = &in.x[v_at(n)];
      const double left = std::exp(in.decay[gate_at(n)]), step = in.step[gate_at(n)];
      for (std::size_t j = 0; j < v_dim; ++j) out[j] = in.skip[static_cast<std::size_t>(head)] * x[j];
      for (std::size_t i = 0; i < k_dim; ++i)
        for (std::size_t j = 0; j < v_dim; ++j) {
          after[i * v_dim + j] = left * before[i * v_dim + j] + b[i] * step * x[j];
          out[j] += after[i * v_dim + j] * read[i];
        }
    }
    return states;
  }

  SO_NOT_SANITIZED void backward(const std::vector<SpaceValues>& states) const {
    const auto k_dim = static_cast<std::size_t>(c.k_dim), v_dim = static_cast<std::size_t>(c.v_dim);
    SpaceValues dstates(k_dim * v_dim, 0.0);
    double* dstate = dstates.data();
    for (std::int64_t n = length - 1; n >= 0; --n) {
      const double *before = states[static_cast<std::size_t>(n)].data(),
                   *after = states[static_cast<std::size_t>(n) + 1].data();
      const double *b = &in.b[k_at(n)], *read = &in.c[k_at(n)];
      double *db = &to.db[k_at(n)], *dread = &to.dc[k_at(n)];
      const double left = std::exp(in.decay[gate_at(n)]), step = in.step[gate_at(n)];
      const double *x = &in.x[v_at(n)], *dout = &in.dout[v_at(n)];
      SpaceValues written_gradients(v_dim, 0.0);
      double* dwritten = written_gradients.data();
      double ddecay = 0, dstep = 0;
      for (std::size_t i = 0; i < k_dim; ++i)
        for (std::size_t j = 0; j < v_dim; ++j) {
          double& d = dstate[i * v_dim + j];
          d += read[i] * dout[j];
          dread[i] += after[i * v_dim + j] * dout[j];
          db[i] += d * step * x[j];
          dwritten[j] += d * b[i];
          ddecay += d * left * before[i * v_dim + j];
          d *= left;
        }
      for (std::size_t j = 0; j < v_dim; ++j) {
        dstep += dwritten[j] * x[j];
        to.dx[v_at(n) + j] = step * dwritten[j] + in.skip[static_cast<std::size_t>(head)] * dout[j];
        to.dskip[static_cast<std::size_t>(head)] += dout[j] * x[j];
      }
      to.dstep[gate_at(n)] = dstep;
      to.ddecay[gate_at(n)] = ddecay;
    }
  }
};

inline SpaceResults space_reference(const SpaceCase& c, const SpaceArrays& in, bool gradient = true) {
  SpaceResults to;
  to.out.resize(in.x.size()), to.dx.resize(in.x.size());
  to.db.resize(in.b.size()), to.dc.resize(in.c.size());
  to.ddecay.resize(in.decay.size()), to.dstep.resize(in.step.size()), to.dskip.resize(in.skip.size());
  std::int64_t begin = 0;
  for (const std::int64_t length : c.documents) {
    to.state.clear();
    for (std::int64_t head = 0; head < c.heads; ++head) {
      const SpaceReference one{c, in, to, begin, length, head};
      const std::vector<SpaceValues> states = one.forward();
      if (gradient) one.backward(states);
      to.state.insert(to.state.end(), states.back().begin(), states.back().end());
    }
    begin += length;
  }
  return to;
}

inline SpaceArrays random_space_arrays(const SpaceCase& c, unsigned seed) {
  const auto count = [&](std::int64_t heads, std::int64_t dim) {
    return static_cast<std::size_t>(c.rows() * heads * dim);
  };
  SpaceArrays a{random_values(count(c.heads, c.v_dim), seed),       random_values(count(c.groups, c.k_dim), seed + 1),
                random_values(count(c.groups, c.k_dim), seed + 2),  random_values(count(c.heads, 1), seed + 3),
                random_values(count(c.heads, 1), seed + 4),         random_values(count(c.heads, c.v_dim), seed + 5),
                random_values(static_cast<std::size_t>(c.heads), 6)};
  // Most states live for some tens of tokens, some for ever, and some die at once.
  for (std::size_t i = 0; i < a.decay.size(); ++i)
    a.decay[i] = i % 11 == 3 ? 0 : i % 47 == 5 ? -30 : 0.05 * (a.decay[i] - 1);
  for (double& step : a.step) step = 0.5 * (step + 1);
  return a;
}

// The tensors of a case: x, b and c side by side in rows wider than they are, as a fused projection gives them.
class SpaceProblem {
 public:
  SpaceProblem(Stream& s, const SpaceCase& case_, DType dtype_, const SpaceArrays& in)
      : c(case_), dtype(dtype_), stream_(s) {
    const std::int64_t rows = c.rows();
    xbc = TestTensor(s, dtype, {rows, width()}, laid_out(in));
    dxbc = random_tensor(s, dtype, {rows, width()}, 31);
    out = random_tensor(s, dtype, {rows, x_width()}, 32);
    SpaceValues douts = random_values(static_cast<std::size_t>(rows * x_width()), 33);
    put(douts, in.dout, x_width(), c.margin, c.heads, c.v_dim);
    dout = TestTensor(s, dtype, {rows, x_width()}, douts);
    decay = TestTensor(s, DType::f32, {rows, c.heads}, in.decay);
    step = TestTensor(s, DType::f32, {rows, c.heads}, in.step);
    ddecay = TestTensor(s, DType::f32, {rows, c.heads});
    dstep = TestTensor(s, DType::f32, {rows, c.heads});
    skip = TestTensor(s, dtype, {c.heads}, in.skip);
    dskip = TestTensor(s, DType::f32, {c.heads});
    SpaceValues bounds{0};
    for (const std::int64_t length : c.documents) bounds.push_back(bounds.back() + static_cast<double>(length));
    starts = TestTensor(s, DType::i32, {static_cast<std::int64_t>(bounds.size())}, bounds);
  }

  Heads x(Tensor rows) const { return heads(rows, c.margin, c.heads, c.v_dim); }
  Heads b(Tensor rows) const { return heads(rows, c.margin + span(c.heads, c.v_dim), c.groups, c.k_dim); }
  Heads cs(Tensor rows) const {
    return heads(rows, c.margin + span(c.heads, c.v_dim) + span(c.groups, c.k_dim), c.groups, c.k_dim);
  }

  StateSpaceSize size() const {
    return {c.rows(), static_cast<std::int64_t>(c.documents.size()), c.groups, c.heads, c.k_dim, c.v_dim, dtype};
  }
  Ops::StateSpace call(Tensor scratch = {}, Tensor state = {}) const {
    return {.out = x(out),
            .x = x(xbc),
            .b = b(xbc),
            .c = cs(xbc),
            .decay = decay,
            .step = step,
            .skip = skip,
            .documents = {starts, static_cast<std::int64_t>(c.documents.size())},
            .state = state,
            .scratch = scratch};
  }
  Ops::StateSpaceGrad gradient_call(Tensor scratch = {}) const {
    return {.dx = x(dxbc),
            .db = b(dxbc),
            .dc = cs(dxbc),
            .ddecay = ddecay,
            .dstep = dstep,
            .dskip = dskip,
            .dout = x(dout),
            .forward = call(),
            .scratch = scratch};
  }
  // With as much scratch as the device's ops ask for.
  void run(Rig& rig, bool gradient = true) const {
    const OpsMemory& memory = rig.ops().memory();
    const std::size_t bytes[2] = {memory.state_space(size()), memory.state_space_grad(size())};
    const Buffer scratch =
        rig.device().allocate(MemoryKind::device, std::max({bytes[0], bytes[1], std::size_t{1}}), "space scratch");
    const auto part = [&](std::size_t n) {
      return n > 0 ? Tensor(scratch.data(), DType::u8, {static_cast<std::int64_t>(n)}) : Tensor();
    };
    rig.ops().state_space(stream_, call(part(bytes[0])));
    if (gradient) rig.ops().state_space_grad(stream_, gradient_call(part(bytes[1])));
    stream_.synchronize();
  }

  // What the op reads, after the rounding to the dtype.
  SpaceArrays inputs() const {
    const SpaceValues rows = xbc.values(stream_);
    return {get(rows, width(), x(xbc)), get(rows, width(), b(xbc)), get(rows, width(), cs(xbc)),
            decay.values(stream_),      step.values(stream_),       get(dout.values(stream_), x_width(), x(dout)),
            skip.values(stream_)};
  }
  SpaceResults results() const {
    const SpaceValues rows = dxbc.values(stream_);
    return {get(out.values(stream_), x_width(), x(out)),
            get(rows, width(), x(dxbc)),
            get(rows, width(), b(dxbc)),
            get(rows, width(), cs(dxbc)),
            ddecay.values(stream_),
            dstep.values(stream_),
            dskip.values(stream_),
            {}};
  }
  // The columns of no head.
  SpaceValues beside() const {
    SpaceValues rows = dxbc.values(stream_), outs = out.values(stream_);
    for (const Heads& h : {x(dxbc), b(dxbc), cs(dxbc)}) put_all(rows, 0, width(), h);
    put_all(outs, 0, x_width(), x(out));
    rows.insert(rows.end(), outs.begin(), outs.end());
    return rows;
  }

  SpaceCase c;
  DType dtype;
  TestTensor xbc, dxbc, out, dout, decay, step, ddecay, dstep, skip, dskip, starts;

 private:
  std::int64_t span(std::int64_t count, std::int64_t dim) const { return count * (dim + c.gap); }
  std::int64_t width() const { return c.margin + span(c.heads, c.v_dim) + 2 * span(c.groups, c.k_dim); }
  std::int64_t x_width() const { return c.margin + span(c.heads, c.v_dim); }
  Heads heads(Tensor rows, std::int64_t offset, std::int64_t count, std::int64_t dim) const {
    return {rows, offset, count, dim, c.gap > 0 ? dim + c.gap : 0};
  }
  SpaceValues laid_out(const SpaceArrays& in) const {
    SpaceValues rows = random_values(static_cast<std::size_t>(c.rows() * width()), 30);
    put(rows, in.x, width(), c.margin, c.heads, c.v_dim);
    put(rows, in.b, width(), c.margin + span(c.heads, c.v_dim), c.groups, c.k_dim);
    put(rows, in.c, width(), c.margin + span(c.heads, c.v_dim) + span(c.groups, c.k_dim), c.groups, c.k_dim);
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
  void put(SpaceValues& rows, const SpaceValues& dense, std::int64_t row_width, std::int64_t offset, std::int64_t count,
           std::int64_t dim) const {
    each(row_width, offset, count, dim, [&](std::size_t at, std::size_t i) { rows[at] = dense[i]; });
  }
  void put_all(SpaceValues& rows, double value, std::int64_t row_width, const Heads& h) const {
    each(row_width, h.offset, h.heads, h.head_dim, [&](std::size_t at, std::size_t) { rows[at] = value; });
  }
  SpaceValues get(const SpaceValues& rows, std::int64_t row_width, const Heads& h) const {
    SpaceValues dense(static_cast<std::size_t>(c.rows() * h.heads * h.head_dim));
    each(row_width, h.offset, h.heads, h.head_dim, [&](std::size_t at, std::size_t i) { dense[i] = rows[at]; });
    return dense;
  }

  Stream& stream_;
};

}  // namespace so::test
