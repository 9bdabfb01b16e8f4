#include "ops/cpu/state_space.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/cpu/convert.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/softmax.h"
#include "ops/cpu/tile_product.h"
#include "ops/state_space_checks.h"
#include "ops/state_space_memory.h"

namespace so {
namespace {

struct SpaceTask {
  std::int64_t begin, end;  // rows of the document
  std::int64_t group;
};

struct SpaceShape {
  explicit SpaceShape(const Ops::StateSpace& a)
      : heads(a.x.heads / a.b.heads), k_dim(a.b.head_dim), v_dim(a.x.head_dim), state(k_dim * v_dim) {}
  std::int64_t heads;  // of a group
  std::int64_t k_dim, v_dim, state;
};

const void* space_row(const Heads& heads, std::int64_t n, std::int64_t h) {
  return advance(heads.rows.data(), heads.rows.dtype(), n * heads.rows.dim(1) + heads.offset + h * heads.step());
}
void load_space_rows(float* to, const Heads& heads, std::int64_t head, std::int64_t begin, std::int64_t count) {
  for (std::int64_t n = 0; n < count; ++n)
    load_row(to + n * heads.head_dim, space_row(heads, begin + n, head), heads.rows.dtype(), heads.head_dim);
}
void store_space_rows(const Heads& heads, std::int64_t head, std::int64_t begin, std::int64_t count,
                      const float* from) {
  for (std::int64_t n = 0; n < count; ++n)
    store_row(const_cast<void*>(space_row(heads, begin + n, head)), heads.rows.dtype(), from + n * heads.head_dim,
              heads.head_dim);
}

float skip_of(const Tensor& skip, std::int64_t head) {
  float result;
  load_row(&result, advance(skip.data(), skip.dtype(), head), skip.dtype(), 1);
  return result;
}

// The rows of a chunk have these for all heads of a group.
struct SpaceGroup {
  float *b, *c, *cb;  // [chunk, k_dim] twice, [chunk, chunk]

  void load(const Ops::StateSpace& a, std::int64_t group, std::int64_t begin, std::int64_t count) const {
    const std::int64_t k_dim = a.b.head_dim;
    load_space_rows(b, a.b, group, begin, count);
    load_space_rows(c, a.c, group, begin, count);
    products::sgemm(false, true, count, count, k_dim, 1, c, k_dim, b, k_dim, 0, cb, state_space_chunk);
  }
};

// What they bring to one head.
struct SpaceHead {
  float *x, *left, *lasting;  // [chunk, v_dim]; L [chunk, chunk], 0 above its diagonal; s p below
  float *steps, *from_state;  // [chunk]: s, p

  void load(const Ops::StateSpace& a, std::int64_t head, std::int64_t begin, std::int64_t count) const {
    load_space_rows(x, a.x, head, begin, count);
    float since_state = 1;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t at = (begin + i) * a.x.heads + head;
      const float decay = std::exp(a.decay.as<const float>()[at]);
      steps[i] = a.step.as<const float>()[at];
      from_state[i] = since_state *= decay;
      float* row = left + i * state_space_chunk;
      for (std::int64_t j = 0; j < i; ++j) row[j] = row[j - state_space_chunk] * decay;
      row[i] = 1;
      std::fill(row + i + 1, row + count, 0.0f);
    }
    for (std::int64_t j = 0; j < count; ++j) lasting[j] = left[(count - 1) * state_space_chunk + j] * steps[j];
  }
  float chunk_decay(std::int64_t count) const { return from_state[count - 1]; }
  void scale_x(std::int64_t count, std::int64_t v_dim) const {
    for (std::int64_t j = 0; j < count; ++j) scale_row(x + j * v_dim, v_dim, lasting[j]);
  }
};

// S becomes the state after the chunk; x has been scaled.
void advance_state(const SpaceShape& shape, const SpaceGroup& group, const SpaceHead& head, std::int64_t count,
                   float* state) {
  products::sgemm(true, false, shape.k_dim, shape.v_dim, count, 1, group.b, shape.k_dim, head.x, shape.v_dim,
                  head.chunk_decay(count), state, shape.v_dim);
}

// to = L o from, rows of `count` of a chunk.
void mask_products(const SpaceHead& head, const float* from, std::int64_t count, float* to) {
  for (std::int64_t at = 0; at < count * state_space_chunk; at += state_space_chunk)
    for (std::int64_t j = 0; j < count; ++j)
      to[at + j] = j <= at / state_space_chunk ? head.left[at + j] * from[at + j] : 0;
}

void space_forward(const Ops::StateSpace& a, const SpaceTask& task) {
  thread_local Scratch memory;
  const SpaceShape shape(a);
  const std::int64_t k_dim = shape.k_dim, v_dim = shape.v_dim, c = state_space_chunk;
  const auto [b, cc, cb, x, left, lasting, steps, from_state, scores, out, states] =
      memory.carve(c * k_dim, c * k_dim, c * c, c * v_dim, c * c, c, c, c, c * c, c * v_dim, shape.heads * shape.state);
  const SpaceGroup group{b, cc, cb};
  const SpaceHead one{x, left, lasting, steps, from_state};
  const std::int64_t first_head = task.group * shape.heads;
  float* const continued = a.state ? a.state.as<float>() + first_head * shape.state : nullptr;
  if (continued)
    std::copy_n(continued, shape.heads * shape.state, states);
  else
    std::fill_n(states, shape.heads * shape.state, 0.0f);
  for (std::int64_t begin = task.begin; begin < task.end; begin += c) {
    const std::int64_t count = std::min(c, task.end - begin);
    group.load(a, task.group, begin, count);
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      float* state = states + h * shape.state;
      one.load(a, first_head + h, begin, count);
      products::sgemm(false, false, count, v_dim, k_dim, 1, cc, k_dim, state, v_dim, 0, out, v_dim);
      for (std::int64_t n = 0; n < count; ++n) scale_row(out + n * v_dim, v_dim, from_state[n]);
      mask_products(one, cb, count, scores);
      for (std::int64_t i = 0; i < count; ++i)
        for (std::int64_t j = 0; j <= i; ++j) scores[i * c + j] *= steps[j];
      products::sgemm(false, false, count, v_dim, count, 1, scores, c, x, v_dim, 1, out, v_dim);
      const float skip = skip_of(a.skip, first_head + h);
      for (std::int64_t i = 0; i < count * v_dim; ++i) out[i] += skip * x[i];
      store_space_rows(a.out, first_head + h, begin, count, out);
      one.scale_x(count, v_dim);
      advance_state(shape, group, one, count, state);
    }
  }
  if (continued) std::copy_n(states, shape.heads * shape.state, continued);
}

// Runs a task of the backward pass. With Y the rows of dout, D = Y X^T and dS' the gradient of the state after a chunk:
//   G = (L o C B^T)^T Y + w B dS'      dX = s G + skip Y      ds = <G, X> of each row
//   dC = sum over heads of (L o D s) B + p Y S^T      dB = sum over heads of (L o D s)^T C + w s X dS'^T
//   dS = p_last dS' + C^T (p Y)
// A row's decay is in all that goes from the state and the rows before it to the rows from it on and the state after.
class SpaceBackward {
 public:
  SpaceBackward(const Ops::StateSpaceGrad& grad, const SpaceTask& task)
      : g_(grad),
        a_(grad.forward),
        task_(task),
        shape_(a_),
        chunks_((task.end - task.begin + state_space_chunk - 1) / state_space_chunk),
        first_head_(task.group * shape_.heads) {
    thread_local Scratch memory;
    const std::int64_t c = state_space_chunk, k_floats = c * shape_.k_dim, v_floats = c * shape_.v_dim;
    const auto [b, cc, cb, x, left, lasting, steps, from_state] =
        memory.carve(k_floats, k_floats, c * c, v_floats, c * c, c, c, c);
    group_ = {b, cc, cb};
    head_ = {x, left, lasting, steps, from_state};
    thread_local Scratch gradients;
    const std::int64_t states = shape_.heads * shape_.state;
    const auto [starts, dstates, dout, by_state, by_dstate, dx, cb_left, dx_left, sums, db, dc, ddecay, dstep] =
        gradients.carve(chunks_ * states, states, v_floats, v_floats, v_floats, v_floats, c * c, c * c, c * c, k_floats,
                        k_floats, c, c);
    starts_ = starts, dstates_ = dstates, dout_ = dout, by_state_ = by_state, by_dstate_ = by_dstate, dx_ = dx;
    cb_left_ = cb_left, dx_left_ = dx_left, sums_ = sums, db_ = db, dc_ = dc, ddecay_ = ddecay, dstep_ = dstep;
  }

  void run() const {
    make_starts();
    const std::int64_t c = state_space_chunk, k_dim = shape_.k_dim;
    std::fill_n(dstates_, shape_.heads * shape_.state, 0.0f);
    for (std::int64_t chunk = chunks_ - 1; chunk >= 0; --chunk) {
      const std::int64_t begin = begin_of(chunk), count = count_of(chunk);
      group_.load(a_, task_.group, begin, count);
      std::fill_n(sums_, c * c, 0.0f);
      std::fill_n(db_, count * k_dim, 0.0f);
      std::fill_n(dc_, count * k_dim, 0.0f);
      for (std::int64_t h = 0; h < shape_.heads; ++h) one_head(chunk, h);
      products::sgemm(false, false, count, k_dim, count, 1, sums_, c, group_.b, k_dim, 1, dc_, k_dim);
      products::sgemm(true, false, count, k_dim, count, 1, sums_, c, group_.c, k_dim, 1, db_, k_dim);
      store_space_rows(g_.db, task_.group, begin, count, db_);
      store_space_rows(g_.dc, task_.group, begin, count, dc_);
    }
  }

 private:
  std::int64_t begin_of(std::int64_t chunk) const { return task_.begin + chunk * state_space_chunk; }
  std::int64_t count_of(std::int64_t chunk) const { return std::min(state_space_chunk, task_.end - begin_of(chunk)); }
  float* start_of(std::int64_t chunk, std::int64_t h) const {
    return starts_ + (chunk * shape_.heads + h) * shape_.state;
  }

  void make_starts() const {
    if (chunks_ > 0) std::fill_n(starts_, shape_.heads * shape_.state, 0.0f);
    for (std::int64_t chunk = 0; chunk + 1 < chunks_; ++chunk) {
      load_space_rows(group_.b, a_.b, task_.group, begin_of(chunk), state_space_chunk);
      for (std::int64_t h = 0; h < shape_.heads; ++h) {
        head_.load(a_, first_head_ + h, begin_of(chunk), state_space_chunk);
        head_.scale_x(state_space_chunk, shape_.v_dim);
        std::copy_n(start_of(chunk, h), shape_.state, start_of(chunk + 1, h));
        advance_state(shape_, group_, head_, state_space_chunk, start_of(chunk + 1, h));
      }
    }
  }

  void one_head(std::int64_t chunk, std::int64_t h) const {
    const std::int64_t begin = begin_of(chunk), count = count_of(chunk), head = first_head_ + h, c = state_space_chunk;
    const std::int64_t k_dim = shape_.k_dim, v_dim = shape_.v_dim;
    const float *state = start_of(chunk, h), *x = head_.x;
    float* dstate = dstates_ + h * shape_.state;
    head_.load(a_, head, begin, count);
    load_space_rows(dout_, g_.dout, head, begin, count);
    products::sgemm(false, true, count, count, v_dim, 1, dout_, v_dim, x, v_dim, 0, dx_left_, c);
    mask_products(head_, dx_left_, count, dx_left_);
    mask_products(head_, group_.cb, count, cb_left_);
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t j = 0; j <= i; ++j) {
        dx_left_[i * c + j] *= head_.steps[j];
        sums_[i * c + j] += dx_left_[i * c + j];
      }
    products::sgemm(false, false, count, v_dim, k_dim, 1, group_.c, k_dim, state, v_dim, 0, by_state_, v_dim);
    products::sgemm(false, false, count, v_dim, k_dim, 1, group_.b, k_dim, dstate, v_dim, 0, by_dstate_, v_dim);
    find_ddecay(count, state, dstate);
    for (std::int64_t j = 0; j < count; ++j) scale_row(by_dstate_ + j * v_dim, v_dim, head_.left[(count - 1) * c + j]);
    products::sgemm(true, false, count, v_dim, count, 1, cb_left_, c, dout_, v_dim, 1, by_dstate_, v_dim);
    const float skip = skip_of(a_.skip, head);
    for (std::int64_t j = 0; j < count; ++j) {
      const float* dwritten = by_dstate_ + j * v_dim;  // the gradient of step x
      dstep_[j] = dot_row(dwritten, x + j * v_dim, v_dim);
      for (std::int64_t i = 0; i < v_dim; ++i)
        dx_[j * v_dim + i] = head_.steps[j] * dwritten[i] + skip * dout_[j * v_dim + i];
    }
    store_space_rows(g_.dx, head, begin, count, dx_);
    for (std::int64_t n = 0; n < count; ++n) {
      g_.ddecay.as<float>()[(begin + n) * a_.x.heads + head] = ddecay_[n];
      g_.dstep.as<float>()[(begin + n) * a_.x.heads + head] = dstep_[n];
      scale_row(dout_ + n * v_dim, v_dim, head_.from_state[n]);
    }
    head_.scale_x(count, v_dim);
    products::sgemm(false, true, count, k_dim, v_dim, 1, dout_, v_dim, state, v_dim, 1, dc_, k_dim);
    products::sgemm(false, true, count, k_dim, v_dim, 1, x, v_dim, dstate, v_dim, 1, db_, k_dim);
    products::sgemm(true, false, k_dim, v_dim, count, 1, group_.c, k_dim, dout_, v_dim, head_.chunk_decay(count),
                    dstate, v_dim);
  }

  // Sums of terms alone, none of which is taken away again.
  void find_ddecay(std::int64_t count, const float* state, const float* dstate) const {
    const std::int64_t c = state_space_chunk, v_dim = shape_.v_dim;
    const float through = head_.chunk_decay(count) * dot_row(state, dstate, shape_.state);
    float written = 0;  // by the rows before n, to the state after the chunk
    for (std::int64_t n = 0; n < count; ++n) {
      ddecay_[n] = through + written;
      written += head_.lasting[n] * dot_row(by_dstate_ + n * v_dim, head_.x + n * v_dim, v_dim);
    }
    float read = 0;  // from the state before the chunk, by the rows from n on
    for (std::int64_t n = count - 1; n >= 0; --n) {
      read += head_.from_state[n] * dot_row(by_state_ + n * v_dim, dout_ + n * v_dim, v_dim);
      ddecay_[n] += read;
      float before = 0;  // read by row n from the rows before m
      for (std::int64_t m = 0; m <= n; ++m) {
        ddecay_[m] += before;
        before += dx_left_[n * c + m] * group_.cb[n * c + m];
      }
    }
  }

  const Ops::StateSpaceGrad& g_;
  const Ops::StateSpace& a_;
  const SpaceTask task_;
  const SpaceShape shape_;
  const std::int64_t chunks_, first_head_;
  SpaceGroup group_;
  SpaceHead head_;
  float *starts_, *dstates_;                    // [chunks, heads, k_dim, v_dim], [heads, k_dim, v_dim]
  float *dout_, *by_state_, *by_dstate_, *dx_;  // [chunk, v_dim]: Y, C S, B dS' and then G
  float *cb_left_, *dx_left_, *sums_;           // [chunk, chunk]: L o C B^T, L o D s, the sum of that over heads
  float *db_, *dc_;                             // [chunk, k_dim]
  float *ddecay_, *dstep_;                      // [chunk]
};

// Runs the tasks of all documents, the longest first so that the last to finish are short.
template <class Run>
void run_space_tasks(ThreadPool& pool, const char* op, const Ops::StateSpace& a, const Run& run) {
  const auto starts = document_starts(op, a.documents, a.x.rows.dim(0));
  std::vector<SpaceTask> tasks;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i)
    for (std::int64_t group = 0; group < a.b.heads; ++group) tasks.push_back({starts[i], starts[i + 1], group});
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const SpaceTask& x, const SpaceTask& y) { return x.end - x.begin > y.end - y.begin; });
  pool.parallel_for(static_cast<std::int64_t>(tasks.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) run(tasks[static_cast<std::size_t>(i)]);
  });
}

// dskip = (+) <dout, x> of all rows of documents.
void skip_gradient(ThreadPool& pool, const Ops::StateSpaceGrad& g) {
  const Heads& x = g.forward.x;
  const auto starts = document_starts("state_space_grad", g.forward.documents, x.rows.dim(0));
  BlockSums sums(x.rows.dim(0), x.heads);
  pool.parallel_for(sums.blocks(), 1, [&](std::int64_t first, std::int64_t last) {
    thread_local Scratch memory;
    const auto [xs, douts] = memory.carve(x.head_dim, x.head_dim);
    for (std::int64_t block = first; block < last; ++block)
      for (std::int64_t n = std::max<std::int64_t>(sums.begin(block), starts.front());
           n < std::min<std::int64_t>(sums.end(block), starts.back()); ++n)
        for (std::int64_t h = 0; h < x.heads; ++h) {
          load_space_rows(xs, x, h, n, 1);
          load_space_rows(douts, g.dout, h, n, 1);
          sums.block(block)[h] += dot_row(xs, douts, x.head_dim);
        }
  });
  sums.finish(pool, g.dskip, g.dskip_mode);
}

}  // namespace

void state_space_forward(ThreadPool& pool, const Ops::StateSpace& a) {
  run_space_tasks(pool, "state_space", a, [&](const SpaceTask& task) { space_forward(a, task); });
}

void state_space_backward(ThreadPool& pool, const Ops::StateSpaceGrad& g) {
  if (g.dskip) skip_gradient(pool, g);
  run_space_tasks(pool, "state_space_grad", g.forward, [&](const SpaceTask& task) { SpaceBackward(g, task).run(); });
}

void CpuOps::state_space(Stream& stream, const StateSpace& a) {
  expect_state_space("state_space", a);
  cpu(stream).enqueue("state_space", WorkCategory::attention,
                      [a, &pool = cpu(stream).pool()] { state_space_forward(pool, a); });
}

void CpuOps::state_space_grad(Stream& stream, const StateSpaceGrad& g) {
  expect_state_space_grad("state_space_grad", g);
  cpu(stream).enqueue("state_space_grad", WorkCategory::attention,
                      [g, &pool = cpu(stream).pool()] { state_space_backward(pool, g); });
}

}  // namespace so
