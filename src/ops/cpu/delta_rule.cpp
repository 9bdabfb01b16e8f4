#include "ops/cpu/delta_rule.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "ops/cpu/convert.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/delta_columns.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/softmax.h"
#include "ops/delta_checks.h"
#include "ops/delta_memory.h"

namespace so {
namespace {

constexpr float delta_epsilon = 1e-6f;

struct DeltaTask {
  std::int64_t begin, end;  // rows of the document
  std::int64_t k_head;
};

// How the states of a task's heads lie: block by block of columns, the last filled up.
struct DeltaStates {
  DeltaStates(std::int64_t group_, std::int64_t k_dim_, std::int64_t v_dim_)
      : group(group_),
        k_dim(k_dim_),
        k_rows(k_dim_ + k_dim_ % 2),
        v_dim(v_dim_),
        width(delta_block_width()),
        blocks((v_dim + width - 1) / width),
        pitch(blocks * width) {}
  std::int64_t group, k_dim;
  std::int64_t k_rows;  // k_dim, or one more to make it even
  std::int64_t v_dim, width, blocks, pitch;

  std::int64_t floats() const { return group * k_rows * pitch; }
  std::int64_t block_at(std::int64_t g, std::int64_t b) const { return (g * blocks + b) * k_rows * width; }
};

const void* head_row(const Heads& heads, std::int64_t n, std::int64_t h) {
  return advance(heads.rows.data(), heads.rows.dtype(), n * heads.rows.dim(1) + heads.offset + h * heads.step());
}

// What a chunk's tokens bring to all value heads of a key head: q and k normalised, in fp32.
struct DeltaKeys {
  float *q, *k, *qk;           // [chunk, k_rows], [chunk, k_rows], [chunk]
  float *q_scales, *k_scales;  // [chunk]: what the given ones were multiplied by

  void load(const Ops::DeltaRule& a, std::int64_t k_head, std::int64_t begin, std::int64_t count,
            std::int64_t k_rows) const {
    const std::int64_t k_dim = a.k.head_dim;
    const float scale = 1.0f / std::sqrt(static_cast<float>(k_dim));
    for (std::int64_t n = 0; n < count; ++n) {
      float *query = q + n * k_rows, *key = k + n * k_rows;
      query[k_rows - 1] = key[k_rows - 1] = 0;
      load_row(query, head_row(a.q, begin + n, k_head), a.q.rows.dtype(), k_dim);
      load_row(key, head_row(a.k, begin + n, k_head), a.k.rows.dtype(), k_dim);
      q_scales[n] = scale / std::sqrt(dot_row(query, query, k_dim) + delta_epsilon);
      k_scales[n] = 1.0f / std::sqrt(dot_row(key, key, k_dim) + delta_epsilon);
      scale_row(query, k_dim, q_scales[n]);
      scale_row(key, k_dim, k_scales[n]);
      qk[n] = dot_row(query, key, k_dim);
    }
  }
};

// What they bring to one value head: rows of values, padded with zeros to whole blocks, and the gates.
struct DeltaValues {
  float *v, *left, *rates;

  static void load_rows(float* to, const Heads& heads, std::int64_t head, std::int64_t begin, std::int64_t count,
                        std::int64_t pitch) {
    for (std::int64_t n = 0; n < count; ++n) {
      load_row(to + n * pitch, head_row(heads, begin + n, head), heads.rows.dtype(), heads.head_dim);
      std::fill(to + n * pitch + heads.head_dim, to + (n + 1) * pitch, 0.0f);
    }
  }
  static void store_rows(const Heads& heads, std::int64_t head, std::int64_t begin, std::int64_t count,
                         std::int64_t pitch, const float* from) {
    for (std::int64_t n = 0; n < count; ++n)
      store_row(const_cast<void*>(head_row(heads, begin + n, head)), heads.rows.dtype(), from + n * pitch,
                heads.head_dim);
  }
  void load(const Ops::DeltaRule& a, std::int64_t head, std::int64_t begin, std::int64_t count,
            std::int64_t pitch) const {
    load_rows(v, a.v, head, begin, count, pitch);
    for (std::int64_t n = 0; n < count; ++n) {
      const std::int64_t at = (begin + n) * a.v.heads + head;
      left[n] = std::exp(a.decay.as<const float>()[at]);
      rates[n] = a.rate.as<const float>()[at];
    }
  }
};

DeltaTokens tokens_of(const DeltaStates& layout, const DeltaKeys& keys, const DeltaValues& values, std::int64_t count) {
  return {count, layout.k_rows, layout.pitch, keys.q, keys.k, keys.qk, values.left, values.rates};
}

// The state of value head `head`, as the op takes it, to or from blocks of columns.
template <bool IN>
void move_state(const DeltaStates& layout, const Tensor& state, std::int64_t head, float* blocks) {
  float* rows = state.as<float>() + head * layout.k_dim * layout.v_dim;
  if (IN) std::fill_n(blocks, layout.k_rows * layout.pitch, 0.0f);
  for (std::int64_t b = 0; b < layout.blocks; ++b)
    for (std::int64_t i = 0; i < layout.k_dim; ++i) {
      float *row = rows + i * layout.v_dim + b * layout.width, *block = blocks + (b * layout.k_rows + i) * layout.width;
      const std::int64_t count = std::min(layout.width, layout.v_dim - b * layout.width);
      IN ? std::copy_n(row, count, block) : std::copy_n(block, count, row);
    }
}

void delta_forward(const Ops::DeltaRule& a, const DeltaTask& task) {
  thread_local Scratch memory;
  const DeltaStates layout(a.v.heads / a.k.heads, a.k.head_dim, a.v.head_dim);
  const std::int64_t k_floats = delta_chunk * layout.k_rows, v_floats = delta_chunk * layout.pitch;
  const auto [q, k, qk, q_scales, k_scales, v, out, left, rates, states] =
      memory.carve(k_floats, k_floats, delta_chunk, delta_chunk, delta_chunk, v_floats, v_floats, delta_chunk,
                   delta_chunk, layout.floats());
  const DeltaKeys keys{q, k, qk, q_scales, k_scales};
  const DeltaValues values{v, left, rates};
  const std::int64_t first_head = task.k_head * layout.group;
  if (!a.state) std::fill_n(states, layout.floats(), 0.0f);
  for (std::int64_t g = 0; a.state && g < layout.group; ++g)
    move_state<true>(layout, a.state, first_head + g, states + layout.block_at(g, 0));
  for (std::int64_t begin = task.begin; begin < task.end; begin += delta_chunk) {
    const std::int64_t count = std::min(delta_chunk, task.end - begin);
    keys.load(a, task.k_head, begin, count, layout.k_rows);
    for (std::int64_t g = 0; g < layout.group; ++g) {
      values.load(a, first_head + g, begin, count, layout.pitch);
      for (std::int64_t b = 0; b < layout.blocks; ++b)
        delta_forward_columns(tokens_of(layout, keys, values, count), states + layout.block_at(g, b),
                              v + b * layout.width, out + b * layout.width);
      DeltaValues::store_rows(a.out, first_head + g, begin, count, layout.pitch, out);
    }
  }
  for (std::int64_t g = 0; a.state && g < layout.group; ++g)
    move_state<false>(layout, a.state, first_head + g, states + layout.block_at(g, 0));
}

// The gradient of x given that, dy, of y = x scale, where scale = c / sqrt(sum of squares + epsilon): in place.
void through_norm(float* dy, const float* y, float scale, float c, std::int64_t count) {
  const float along = dot_row(y, dy, count) / (c * c);
  for (std::int64_t i = 0; i < count; ++i) dy[i] = scale * (dy[i] - y[i] * along);
}

// Runs a task of the backward pass.
class DeltaBackward {
 public:
  DeltaBackward(const Ops::DeltaRuleGrad& grad, const DeltaTask& task)
      : g_(grad),
        a_(grad.forward),
        task_(task),
        layout_(a_.v.heads / a_.k.heads, a_.k.head_dim, a_.v.head_dim),
        chunks_((task.end - task.begin + delta_chunk - 1) / delta_chunk),
        first_head_(task.k_head * layout_.group),
        parts_(delta_sum_parts()) {
    thread_local Scratch memory;
    const std::int64_t c = delta_chunk, k_floats = c * layout_.k_rows, v_floats = c * layout_.pitch;
    const auto [q, k, qk, q_scales, k_scales, v, left, rates] =
        memory.carve(k_floats, k_floats, c, c, c, v_floats, c, c);
    keys_ = {q, k, qk, q_scales, k_scales};
    values_ = {v, left, rates};
    thread_local Scratch gradients;
    const auto [states, starts, dstates, errors, dout, dq_dk, dq, dk, u_dout, ddecay, drate] =
        gradients.carve(k_floats * layout_.width, chunks_ * layout_.floats(), layout_.floats(), v_floats, v_floats,
                        2 * k_floats * parts_, layout_.k_rows, layout_.k_rows, c, c, c);
    states_ = states, starts_ = starts, dstates_ = dstates, errors_ = errors, dout_ = dout;
    dq_dk_ = dq_dk, dq_ = dq, dk_ = dk, u_dout_ = u_dout, ddecay_ = ddecay, drate_ = drate;
  }

  void run() const {
    make_starts();
    std::fill_n(dstates_, layout_.floats(), 0.0f);
    for (std::int64_t chunk = chunks_ - 1; chunk >= 0; --chunk) {
      const std::int64_t begin = begin_of(chunk), count = count_of(chunk);
      keys_.load(a_, task_.k_head, begin, count, layout_.k_rows);
      std::fill_n(dq_dk_, 2 * count * layout_.k_rows * parts_, 0.0f);
      std::fill_n(u_dout_, count, 0.0f);
      for (std::int64_t h = 0; h < layout_.group; ++h) value_head(chunk, h);
      store_dq_dk(begin, count);
    }
  }

 private:
  std::int64_t begin_of(std::int64_t chunk) const { return task_.begin + chunk * delta_chunk; }
  std::int64_t count_of(std::int64_t chunk) const { return std::min(delta_chunk, task_.end - begin_of(chunk)); }

  void make_starts() const {
    const std::int64_t floats = layout_.floats();
    if (chunks_ > 0) std::fill_n(starts_, floats, 0.0f);
    for (std::int64_t chunk = 0; chunk + 1 < chunks_; ++chunk) {
      float* next = starts_ + (chunk + 1) * floats;
      std::copy_n(starts_ + chunk * floats, floats, next);
      keys_.load(a_, task_.k_head, begin_of(chunk), delta_chunk, layout_.k_rows);
      for (std::int64_t h = 0; h < layout_.group; ++h) {
        values_.load(a_, first_head_ + h, begin_of(chunk), delta_chunk, layout_.pitch);
        for (std::int64_t b = 0; b < layout_.blocks; ++b)
          delta_forward_columns(tokens_of(layout_, keys_, values_, delta_chunk), next + layout_.block_at(h, b),
                                values_.v + b * layout_.width, dout_ + b * layout_.width);  // nobody wants the results
      }
    }
  }

  void value_head(std::int64_t chunk, std::int64_t h) const {
    const std::int64_t begin = begin_of(chunk), count = count_of(chunk), head = first_head_ + h;
    values_.load(a_, head, begin, count, layout_.pitch);
    DeltaValues::load_rows(dout_, g_.dout, head, begin, count, layout_.pitch);
    std::fill_n(ddecay_, count, 0.0f);
    std::fill_n(drate_, count, 0.0f);
    const DeltaTokens tokens = tokens_of(layout_, keys_, values_, count);
    for (std::int64_t b = 0; b < layout_.blocks; ++b) {
      const std::int64_t column = b * layout_.width, at = layout_.block_at(h, b);
      delta_remake_columns(tokens, starts_ + chunk * layout_.floats() + at, values_.v + column, states_,
                           errors_ + column);
      delta_backward_columns(tokens, {states_, errors_ + column, dstates_ + at, dout_ + column, dout_ + column, dq_dk_,
                                      u_dout_, ddecay_, drate_});
    }
    DeltaValues::store_rows(g_.dv, head, begin, count, layout_.pitch, dout_);
    for (std::int64_t n = 0; n < count; ++n) {
      g_.ddecay.as<float>()[(begin + n) * a_.v.heads + head] = ddecay_[n];
      g_.drate.as<float>()[(begin + n) * a_.v.heads + head] = drate_[n];
    }
  }

  void store_dq_dk(std::int64_t begin, std::int64_t count) const {
    const std::int64_t k_dim = layout_.k_dim, k_rows = layout_.k_rows;
    const auto sum = [&](const float* parts) { return std::accumulate(parts, parts + parts_, 0.0f); };
    for (std::int64_t n = 0; n < count; ++n) {
      const float *q = keys_.q + n * k_rows, *k = keys_.k + n * k_rows;
      for (std::int64_t i = 0; i < k_rows; i += 2) {
        const float* four = dq_dk_ + (n * k_rows + i) * 2 * parts_;
        for (std::int64_t j = 0; j < 2; ++j) {
          dq_[i + j] = sum(four + j * parts_) + u_dout_[n] * k[i + j];
          dk_[i + j] = sum(four + (2 + j) * parts_) + u_dout_[n] * q[i + j];
        }
      }
      through_norm(dq_, q, keys_.q_scales[n], 1.0f / std::sqrt(static_cast<float>(k_dim)), k_dim);
      through_norm(dk_, k, keys_.k_scales[n], 1, k_dim);
      DeltaValues::store_rows(g_.dq, task_.k_head, begin + n, 1, k_dim, dq_);
      DeltaValues::store_rows(g_.dk, task_.k_head, begin + n, 1, k_dim, dk_);
    }
  }

  const Ops::DeltaRuleGrad& g_;
  const Ops::DeltaRule& a_;
  const DeltaTask task_;
  const DeltaStates layout_;
  const std::int64_t chunks_, first_head_, parts_;
  DeltaKeys keys_;
  DeltaValues values_;
  float *states_, *starts_, *dstates_;  // [chunk, k_rows, width], [chunks, all blocks], [all blocks]
  float *errors_, *dout_;               // [chunk, pitch]
  float *dq_dk_, *dq_, *dk_;            // as in DeltaColumnsGrad; a token's
  float *u_dout_, *ddecay_, *drate_;    // [chunk]
};

// Runs the tasks of all documents, the longest first so that the last to finish are short.
template <class Run>
void run_delta_tasks(ThreadPool& pool, const char* op, const Ops::DeltaRule& a, const Run& run) {
  const auto starts = document_starts(op, a.documents, a.q.rows.dim(0));
  std::vector<DeltaTask> tasks;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i)
    for (std::int64_t head = 0; head < a.k.heads; ++head) tasks.push_back({starts[i], starts[i + 1], head});
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const DeltaTask& x, const DeltaTask& y) { return x.end - x.begin > y.end - y.begin; });
  pool.parallel_for(static_cast<std::int64_t>(tasks.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) run(tasks[static_cast<std::size_t>(i)]);
  });
}

}  // namespace

void delta_rule_forward(ThreadPool& pool, const Ops::DeltaRule& a) {
  run_delta_tasks(pool, "delta_rule", a, [&](const DeltaTask& task) { delta_forward(a, task); });
}

void delta_rule_backward(ThreadPool& pool, const Ops::DeltaRuleGrad& g) {
  run_delta_tasks(pool, "delta_rule_grad", g.forward, [&](const DeltaTask& task) { DeltaBackward(g, task).run(); });
}

void CpuOps::delta_rule(Stream& stream, const DeltaRule& a) {
  expect_delta_rule("delta_rule", a);
  cpu(stream).enqueue("delta_rule", WorkCategory::attention,
                      [a, &pool = cpu(stream).pool()] { delta_rule_forward(pool, a); });
}

void CpuOps::delta_rule_grad(Stream& stream, const DeltaRuleGrad& g) {
  expect_delta_rule_grad("delta_rule_grad", g);
  cpu(stream).enqueue("delta_rule_grad", WorkCategory::attention,
                      [g, &pool = cpu(stream).pool()] { delta_rule_backward(pool, g); });
}

}  // namespace so
