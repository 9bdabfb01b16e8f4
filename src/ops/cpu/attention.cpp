#include "ops/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "base/thread_pool.h"
#include "ops/checks.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/softmax.h"
#include "ops/cpu/tile_product.h"

namespace so {
namespace {

// Keys at a time. With a stack of queries below, a tile of scores (and one of gradients) stays in the second-level
// cache.
constexpr std::int64_t key_block = 128;
// Rows of a stack: enough for the product to run at full speed, few enough that little above the diagonal is computed.
constexpr std::int64_t stack_rows = 96, max_query_block = 64, min_query_block = 16;
// Backward, a document up to this many rows is one task for each key head, which computes scores once for all three
// gradients. Longer ones are cut, by key blocks for dk and dv and by query blocks for dq, each computing the scores for
// itself: two products of seven more, but any number of threads finds work.
constexpr std::int64_t fused_rows = 512;

struct Document {
  std::int64_t q_begin, q_count, k_begin, k_count;
  std::int64_t window;  // at least 1
  // Query row r of the document sees the keys [first(r), visible(r)).
  std::int64_t visible(std::int64_t r) const { return std::clamp<std::int64_t>(r + 1 + k_count - q_count, 0, k_count); }
  std::int64_t first(std::int64_t r) const { return std::max<std::int64_t>(r + 1 + k_count - q_count - window, 0); }
  // The queries that see any of the keys [begin, end) are those in [first_query(begin), past_query(end)).
  std::int64_t first_query(std::int64_t begin) const { return std::max<std::int64_t>(begin - k_count + q_count, 0); }
  std::int64_t past_query(std::int64_t end) const {
    return std::clamp<std::int64_t>(end - 1 - k_count + q_count + window, 0, q_count);
  }
};

std::vector<Document> read_documents(const AttentionSpans& spans, std::int64_t q_rows, std::int64_t k_rows) {
  const auto cu_q = spans.cu_q.span<const std::int32_t>(), cu_k = spans.cu_k.span<const std::int32_t>();
  // No query sees more keys than there are.
  const std::int64_t window = spans.window > 0 ? std::min(spans.window, k_rows + 1) : k_rows + 1;
  std::vector<Document> documents;
  documents.reserve(static_cast<std::size_t>(spans.documents));
  SO_CHECK(cu_q[0] >= 0 && cu_k[0] >= 0, "documents begin at {} and {}", cu_q[0], cu_k[0]);
  for (std::size_t i = 0; i + 1 < cu_q.size(); ++i) {
    const Document d{cu_q[i], cu_q[i + 1] - cu_q[i], cu_k[i], cu_k[i + 1] - cu_k[i], window};
    SO_CHECK(d.q_count >= 0 && d.k_count >= 0 && cu_q[i + 1] <= q_rows && cu_k[i + 1] <= k_rows,
             "document {}: query rows [{}, {}) of {}, key rows [{}, {}) of {}", i, cu_q[i], cu_q[i + 1], q_rows,
             cu_k[i], cu_k[i + 1], k_rows);
    documents.push_back(d);
  }
  return documents;
}

std::int64_t query_block(std::int64_t group) {
  return std::clamp(stack_rows / group / 8 * 8, min_query_block, max_query_block);
}

void* element(const Heads& heads, std::int64_t row, std::int64_t head) {
  return advance(heads.rows.data(), heads.rows.dtype(), row * heads.rows.dim(1) + heads.offset + head * heads.head_dim);
}

// Rows of one head in fp32: where they are if they are fp32, else widened into `copy`.
struct Fp32Rows {
  const float* data;
  std::int64_t stride;
};
Fp32Rows fp32_rows(const Heads& heads, std::int64_t row, std::int64_t count, std::int64_t head, float* copy) {
  if (heads.rows.dtype() == DType::f32)
    return {static_cast<const float*>(element(heads, row, head)), heads.rows.dim(1)};
  for (std::int64_t r = 0; r < count; ++r)
    load_row(copy + r * heads.head_dim, element(heads, row + r, head), heads.rows.dtype(), heads.head_dim);
  return {copy, heads.head_dim};
}

// A stack: rows [row, row + count) of heads [head, head + group), one head after another.
void load_stack(float* to, const Heads& heads, std::int64_t row, std::int64_t count, std::int64_t head,
                std::int64_t group) {
  const DType type = heads.rows.dtype();
  for (std::int64_t g = 0; g < group; ++g) {
    const void* from = element(heads, row, head + g);
    for (std::int64_t r = 0; r < count; ++r, to += heads.head_dim, from = advance(from, type, heads.rows.dim(1)))
      load_row(to, from, type, heads.head_dim);
  }
}
void store_stack(const Heads& heads, const float* from, std::int64_t row, std::int64_t count, std::int64_t head,
                 std::int64_t group) {
  const DType type = heads.rows.dtype();
  for (std::int64_t g = 0; g < group; ++g) {
    void* to = element(heads, row, head + g);
    for (std::int64_t r = 0; r < count; ++r, from += heads.head_dim, to = advance(to, type, heads.rows.dim(1)))
      store_row(to, type, from, heads.head_dim);
  }
}

ScoreTile score_tile(const Document& document, float* scores, std::int64_t rows, std::int64_t q_begin,
                     std::int64_t period, std::int64_t k_begin, std::int64_t width) {
  const std::int64_t stride = (width + tile_padding - 1) / tile_padding * tile_padding;
  // Not visible(q_begin): the rows after a blind one would be counted from the wrong place.
  const std::int64_t first = q_begin + 1 + document.k_count - document.q_count - k_begin;
  return {scores, rows, width, stride, first, period, document.window};
}

// One piece of work: blocks of queries [q_begin, q_end) against keys [k_begin, k_end) of a document and a key head.
struct Task {
  Document document;
  std::int64_t kv_head;
  std::int64_t q_begin, q_end, k_begin, k_end;
  bool want_dq = false, want_dkv = false;

  std::int64_t cost() const {  // score elements, near enough
    return (q_end - q_begin) *
           (std::min(k_end, document.visible(q_end - 1)) - std::max(k_begin, document.first(q_begin)));
  }
};

// Runs the tasks, the largest first so that the last to finish are small.
template <class Run>
void run_tasks(ThreadPool& pool, std::vector<Task>& tasks, const Run& run) {
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.cost() > b.cost(); });
  pool.parallel_for(static_cast<std::int64_t>(tasks.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) run(tasks[static_cast<std::size_t>(i)]);
  });
}

float scalar(const Tensor& values, std::int64_t i) {
  float value;
  load_row(&value, advance(values.data(), values.dtype(), i), values.dtype(), 1);
  return value;
}

// --- forward ---

struct Forward {
  const Heads &out, &q, &k, &v;
  const Tensor &lse, &sinks;
  float scale;

  void run(const Task& t) const {
    thread_local Scratch memory;
    const std::int64_t group = q.heads / k.heads, dim = q.head_dim, count = t.q_end - t.q_begin, stack = group * count;
    const std::int64_t first_head = t.kv_head * group;
    const auto [queries, scores, sums, largest, total, k_copy, v_copy] =
        memory.carve(stack * dim, stack * key_block, stack * dim, stack, stack, key_block * dim, key_block * dim);
    load_stack(queries, q, t.document.q_begin + t.q_begin, count, first_head, group);
    if (t.k_end == t.k_begin) std::fill_n(sums, stack * dim, 0.0f);  // all rows are blind
    for (std::int64_t begin = t.k_begin; begin < t.k_end; begin += key_block) {
      const std::int64_t width = std::min(key_block, t.k_end - begin);
      const Fp32Rows ks = fp32_rows(k, t.document.k_begin + begin, width, t.kv_head, k_copy);
      const Fp32Rows vs = fp32_rows(v, t.document.k_begin + begin, width, t.kv_head, v_copy);
      const ScoreTile tile = score_tile(t.document, scores, stack, t.q_begin, count, begin, width);
      products::sgemm(false, true, stack, width, dim, scale, queries, dim, ks.data, ks.stride, 0, scores, tile.stride);
      softmax_tile(tile, largest, total, sums, dim, begin == t.k_begin);
      products::sgemm(false, false, stack, dim, width, 1, scores, tile.stride, vs.data, vs.stride,
                      begin > t.k_begin ? 1.0f : 0.0f, sums, dim);
    }
    for (std::int64_t s = 0; s < stack; ++s) {
      const std::int64_t head = first_head + s / count, r = t.q_begin + s % count;
      float& row_lse = lse.as<float>()[head * lse.dim(1) + t.document.q_begin + r];
      const float sink = sinks ? scalar(sinks, head) : -std::numeric_limits<float>::infinity();
      if (t.document.visible(r) == 0) {
        row_lse = sink;
        continue;
      }
      const float highest = std::max(largest[s], sink), share = std::exp(largest[s] - highest);
      const float sum = sinks ? share * total[s] + std::exp(sink - highest) : total[s];
      scale_row(sums + s * dim, dim, sinks ? share / sum : 1.0f / sum);
      row_lse = highest + std::log(sum);
    }
    store_stack(out, sums, t.document.q_begin + t.q_begin, count, first_head, group);
  }
};

// --- backward ---

struct Backward {
  const Heads &dq, &dk, &dv, &dout, &out, &q, &k, &v;
  const Tensor& lse;
  float scale;

  // With S = scale q k^T, P = exp(S - lse) and delta = rowsum(dout out):
  //   dv = P^T dout,  dS = P (dout v^T - delta),  dq = scale dS k,  dk = scale dS^T q.
  void run(const Task& t) const {
    thread_local Scratch memory;
    const std::int64_t group = q.heads / k.heads, dim = q.head_dim, block = query_block(group), stack = group * block;
    const std::int64_t keys = t.k_end - t.k_begin, first_head = t.kv_head * group;
    const auto [queries, douts, outs, dqs, delta, lses, scores, dscores, k_copy, v_copy, dks, dvs] = memory.carve(
        stack * dim, stack * dim, stack * dim, stack * dim, stack, stack, stack * key_block, stack * key_block,
        key_block * dim, key_block * dim, t.want_dkv ? keys * dim : 0, t.want_dkv ? keys * dim : 0);
    if (t.want_dkv) {
      std::fill_n(dks, keys * dim, 0.0f);
      std::fill_n(dvs, keys * dim, 0.0f);
    }
    for (std::int64_t q_begin = t.q_begin; q_begin < t.q_end; q_begin += block) {
      const std::int64_t count = std::min(block, t.q_end - q_begin), height = group * count;
      const std::int64_t row = t.document.q_begin + q_begin;
      const std::int64_t k_begin = std::max(t.k_begin, t.document.first(q_begin)),
                         k_end = std::min(t.k_end, t.document.visible(q_begin + count - 1));
      if (t.want_dq) std::fill_n(dqs, height * dim, 0.0f);
      if (k_end > k_begin) {
        load_stack(queries, q, row, count, first_head, group);
        load_stack(douts, dout, row, count, first_head, group);
        load_stack(outs, out, row, count, first_head, group);
        for (std::int64_t s = 0; s < height; ++s) {
          delta[s] = dot_row(douts + s * dim, outs + s * dim, dim);
          lses[s] = lse.as<float>()[(first_head + s / count) * lse.dim(1) + row + s % count];
        }
      }
      for (std::int64_t begin = k_begin; begin < k_end; begin += key_block) {
        const std::int64_t width = std::min(key_block, k_end - begin);
        const Fp32Rows ks = fp32_rows(k, t.document.k_begin + begin, width, t.kv_head, k_copy);
        const Fp32Rows vs = fp32_rows(v, t.document.k_begin + begin, width, t.kv_head, v_copy);
        const ScoreTile tile = score_tile(t.document, scores, height, q_begin, count, begin, width);
        products::sgemm(false, true, height, width, dim, scale, queries, dim, ks.data, ks.stride, 0, scores,
                        tile.stride);
        products::sgemm(false, true, height, width, dim, 1, douts, dim, vs.data, vs.stride, 0, dscores, tile.stride);
        softmax_grad_tile(tile, dscores, lses, delta);
        if (t.want_dkv) {
          const std::int64_t at = (begin - t.k_begin) * dim;
          products::sgemm(true, false, width, dim, height, 1, scores, tile.stride, douts, dim, 1, dvs + at, dim);
          products::sgemm(true, false, width, dim, height, scale, dscores, tile.stride, queries, dim, 1, dks + at, dim);
        }
        if (t.want_dq)
          products::sgemm(false, false, height, dim, width, scale, dscores, tile.stride, ks.data, ks.stride, 1, dqs,
                          dim);
      }
      if (t.want_dq) store_stack(dq, dqs, row, count, first_head, group);
    }
    if (t.want_dkv) {
      store_stack(dk, dks, t.document.k_begin + t.k_begin, keys, t.kv_head, 1);
      store_stack(dv, dvs, t.document.k_begin + t.k_begin, keys, t.kv_head, 1);
    }
  }
};

// dsinks[h] = -(sum over rows of exp(sink - lse) rowsum(dout out)), in the order of the rows.
void sink_gradient(ThreadPool& pool, const Tensor& dsinks, const Heads& dout, const Heads& out, const Tensor& lse,
                   const AttentionSpans& spans, Accumulate mode) {
  const auto cu_q = spans.cu_q.span<const std::int32_t>();
  const std::int64_t first = cu_q.front(), dim = out.head_dim;
  BlockSums sums(cu_q.back() - first, out.heads);
  pool.parallel_for(sums.blocks(), 1, [&](std::int64_t begin, std::int64_t end) {
    thread_local Scratch memory;
    const auto [douts, outs] = memory.carve(BlockSums::kRows * dim, BlockSums::kRows * dim);
    for (std::int64_t b = begin; b < end; ++b)
      for (std::int64_t h = 0; h < out.heads; ++h) {
        const std::int64_t row = first + sums.begin(b), count = sums.end(b) - sums.begin(b);
        const Fp32Rows d = fp32_rows(dout, row, count, h, douts), o = fp32_rows(out, row, count, h, outs);
        const float sink = scalar(spans.sinks, h);
        const float* const lses = lse.as<const float>() + h * lse.dim(1) + row;
        for (std::int64_t r = 0; r < count; ++r)
          sums.block(b)[h] -= std::exp(sink - lses[r]) * dot_row(d.data + r * d.stride, o.data + r * o.stride, dim);
      }
  });
  sums.finish(pool, dsinks, mode);
}

void check_heads(const Heads& heads, DType type, std::int64_t rows, std::int64_t count, std::int64_t dim,
                 const char* name) {
  SO_CHECK(heads.rows.rank() == 2 && heads.rows.dtype() == type && heads.rows.dim(0) == rows,
           "{}: {} {}, should be {} [{}, *]", name, name_of(heads.rows.dtype()), shape_string(heads.rows.shape()),
           name_of(type), rows);
  SO_CHECK(heads.heads == count && heads.head_dim == dim, "{}: {} heads of {}, should be {} of {}", name, heads.heads,
           heads.head_dim, count, dim);
  SO_CHECK(heads.offset >= 0 && heads.offset + count * dim <= heads.rows.dim(1),
           "{}: {} heads of {} at {} in rows of {}", name, count, dim, heads.offset, heads.rows.dim(1));
  expect_no_gaps("attention", name, heads);
}

}  // namespace

void check_attention(const Ops::Attention& a) {
  SO_CHECK(a.q.rows.rank() == 2 && a.k.rows.rank() == 2, "attention of {} and {}", shape_string(a.q.rows.shape()),
           shape_string(a.k.rows.shape()));
  const DType type = a.q.rows.dtype();
  SO_CHECK(type == DType::f32 || type == DType::bf16, "attention on {}", name_of(type));
  const std::int64_t tokens = a.q.rows.dim(0), k_rows = a.k.rows.dim(0), dim = a.q.head_dim;
  SO_CHECK(a.q.heads > 0 && a.k.heads > 0 && dim > 0 && a.q.heads % a.k.heads == 0,
           "{} query heads of {} on {} key heads", a.q.heads, dim, a.k.heads);
  check_heads(a.q, type, tokens, a.q.heads, dim, "q");
  check_heads(a.k, type, k_rows, a.k.heads, dim, "k");
  check_heads(a.v, type, k_rows, a.k.heads, dim, "v");
  check_heads(a.out, type, tokens, a.q.heads, dim, "out");
  SO_CHECK(a.lse.rank() == 2 && a.lse.dtype() == DType::f32 && a.lse.dim(0) == a.q.heads && a.lse.dim(1) == tokens,
           "lse {}", shape_string(a.lse.shape()));
  const auto& starts = a.spans.starts;
  SO_CHECK(
      starts.empty() || (std::ssize(starts) == a.spans.documents + 1 && starts.front() == 0 && starts.back() <= tokens),
      "{} starts of {} documents in {} rows", starts.size(), a.spans.documents, tokens);
  for (const Tensor& cu : {a.spans.cu_q, a.spans.cu_k})
    SO_CHECK(cu.dtype() == DType::i32 && a.spans.documents >= 0 && cu.size() == a.spans.documents + 1,
             "{} documents, bounds {} {}", a.spans.documents, name_of(cu.dtype()), shape_string(cu.shape()));
  SO_CHECK(a.spans.window >= 0, "a window of {} keys", a.spans.window);
  if (a.spans.sinks) expect_tensor("attention", "sinks", a.spans.sinks, type, {a.q.heads});
}

void check_attention_grad(const Ops::AttentionGrad& g) {
  const Ops::Attention& a = g.forward;
  check_attention(a);
  const DType type = a.q.rows.dtype();
  check_heads(g.dq, type, a.q.rows.dim(0), a.q.heads, a.q.head_dim, "dq");
  check_heads(g.dout, type, a.q.rows.dim(0), a.q.heads, a.q.head_dim, "dout");
  check_heads(g.dk, type, a.k.rows.dim(0), a.k.heads, a.k.head_dim, "dk");
  check_heads(g.dv, type, a.k.rows.dim(0), a.k.heads, a.k.head_dim, "dv");
  if (a.spans.sinks)
    expect_gradient("attention_grad", "dsinks", g.dsinks, type, {a.q.heads});
  else
    SO_CHECK(!g.dsinks, "attention_grad: dsinks {} without sinks", shape_string(g.dsinks.shape()));
}

void attention_forward(ThreadPool& pool, const Ops::Attention& a) {
  const std::int64_t block = query_block(a.q.heads / a.k.heads);
  std::vector<Task> tasks;
  for (const Document& d : read_documents(a.spans, a.q.rows.dim(0), a.k.rows.dim(0)))
    for (std::int64_t head = 0; head < a.k.heads; ++head)
      for (std::int64_t begin = 0; begin < d.q_count; begin += block) {
        const std::int64_t end = std::min(begin + block, d.q_count);
        const std::int64_t k_end = d.visible(end - 1);
        tasks.push_back({d, head, begin, end, std::min(d.first(begin), k_end), k_end});
      }
  const Forward forward{a.out, a.q, a.k, a.v, a.lse, a.spans.sinks, a.spans.scale};
  run_tasks(pool, tasks, [&](const Task& t) { forward.run(t); });
}

void attention_backward(ThreadPool& pool, const Ops::AttentionGrad& g) {
  const Ops::Attention& a = g.forward;
  const std::int64_t block = query_block(a.q.heads / a.k.heads);
  std::vector<Task> tasks;
  for (const Document& d : read_documents(a.spans, a.q.rows.dim(0), a.k.rows.dim(0)))
    for (std::int64_t head = 0; head < a.k.heads; ++head) {
      if (std::max(d.q_count, d.k_count) <= fused_rows) {
        tasks.push_back({d, head, 0, d.q_count, 0, d.k_count, true, true});
        continue;
      }
      for (std::int64_t begin = 0; begin < d.k_count; begin += key_block) {
        const std::int64_t end = std::min(begin + key_block, d.k_count);
        const std::int64_t q_begin = d.first_query(begin) / block * block;
        tasks.push_back({d, head, q_begin, std::max(d.past_query(end), q_begin), begin, end, false, true});
      }
      for (std::int64_t begin = 0; begin < d.q_count; begin += block)
        tasks.push_back({d, head, begin, std::min(begin + block, d.q_count), 0, d.k_count, true, false});
    }
  const Backward backward{g.dq, g.dk, g.dv, g.dout, a.out, a.q, a.k, a.v, a.lse, a.spans.scale};
  run_tasks(pool, tasks, [&](const Task& t) { backward.run(t); });
  if (a.spans.sinks) sink_gradient(pool, g.dsinks, g.dout, a.out, a.lse, a.spans, g.dsinks_mode);
}

void CpuOps::attention(Stream& stream, const Attention& a) {
  check_attention(a);
  cpu(stream).enqueue("attention", WorkCategory::attention,
                      [a, &pool = cpu(stream).pool()] { attention_forward(pool, a); });
}

void CpuOps::attention_grad(Stream& stream, const AttentionGrad& g) {
  check_attention_grad(g);
  cpu(stream).enqueue("attention_grad", WorkCategory::attention,
                      [g, &pool = cpu(stream).pool()] { attention_backward(pool, g); });
}

}  // namespace so
