#include "ops/cpu/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "ops/checks.h"
#include "ops/cpu/convert.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/scratch.h"
#include "ops/cpu/softmax.h"

namespace so {
namespace {

constexpr std::int64_t logits_grain = 8;  // rows of logits a thread takes at a time

struct Shape {
  std::int64_t tokens, hidden, vocabulary;
};
Shape shape_of(const Ops::LinearCrossEntropy& a) { return {a.hidden.dim(0), a.hidden.dim(1), a.weight.dim(0)}; }

std::vector<std::int64_t> rows_with_target(const Ops::LinearCrossEntropy& a) {
  const auto targets = a.targets.span<const std::int32_t>();
  std::vector<std::int64_t> rows;
  rows.reserve(targets.size());
  for (std::size_t n = 0; n < targets.size(); ++n) {
    SO_CHECK(targets[n] < a.weight.dim(0), "target {} of row {} in a vocabulary of {}", targets[n], n, a.weight.dim(0));
    if (targets[n] >= 0) rows.push_back(static_cast<std::int64_t>(n));
  }
  return rows;
}

void zero_rows_without_target(ThreadPool& pool, const Ops::LinearCrossEntropy& a) {
  const Shape shape = shape_of(a);
  const auto* targets = a.targets.as<const std::int32_t>();
  auto* losses = a.losses.as<float>();
  constexpr std::int64_t grain = 256;
  pool.parallel_for(shape.tokens, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t n = begin; n < end; ++n) {
      if (targets[n] >= 0) continue;
      losses[n] = 0;
      if (!a.dhidden) continue;
      const Tensor row = a.dhidden.rows(n, 1);
      std::memset(row.data(), 0, row.bytes());
    }
  });
}

// The mean of a row relative to its largest element, in double.
double mean_margin(const float* logits, std::int64_t count, float largest) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(logits[i]) - largest;
  return sum / static_cast<double>(count);
}

// logits = cap tanh(logits / cap); `slopes`, unless null, receives the derivative.
void cap_row(float* logits, float* slopes, std::int64_t count, float cap) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float t = std::tanh(logits[i] / cap);
    logits[i] = cap * t;
    if (slopes != nullptr) slopes[i] = (1 - t) * (1 + t);
  }
}

// Turns a row of logits into its loss and, when wanted, its gradient scale * (softmax - q), where the distribution q
// has `smoothing` spread over the whole row and the rest at the target.
float loss_row(float* logits, std::int64_t count, std::int64_t target, float scale, float smoothing,
               bool want_gradient) {
  const float largest = row_max(logits, count);
  double margin = static_cast<double>(logits[target]) - largest;
  if (smoothing > 0) margin = (1.0 - smoothing) * margin + smoothing * mean_margin(logits, count, largest);
  const float sum = exp_row(logits, count, largest);
  if (want_gradient) {
    scale_row(logits, count, scale / sum);
    if (smoothing > 0) {
      const float uniform = scale * smoothing / static_cast<float>(count);
      for (std::int64_t i = 0; i < count; ++i) logits[i] -= uniform;
    }
    logits[target] -= scale * (1 - smoothing);
  }
  return static_cast<float>(std::log(static_cast<double>(sum)) - margin);
}

// Rounds a row to bf16 where it lies: the result fills the first half of the row.
void narrow_in_place(float* row, std::int64_t count) {
  constexpr std::int64_t block = 512;
  float wide[block];
  for (std::int64_t begin = 0; begin < count; begin += block) {
    const std::int64_t size = std::min(block, count - begin);
    std::memcpy(wide, row + begin, static_cast<std::size_t>(size) * sizeof(float));
    store_row(reinterpret_cast<bf16*>(row) + begin, DType::bf16, wide, size);
  }
}

// Rows `rows` of `from` one after another: where they are if they are neighbours, else copied to `copy`.
const void* gather(ThreadPool& pool, const Tensor& from, std::span<const std::int64_t> rows, void* copy) {
  const auto count = static_cast<std::int64_t>(rows.size());
  if (rows.back() - rows.front() + 1 == count) return from.rows(rows.front(), count).data();
  const std::int64_t width = from.dim(1);
  constexpr std::int64_t grain = 64;
  pool.parallel_for(count, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Tensor row = from.rows(rows[static_cast<std::size_t>(i)], 1);
      std::memcpy(advance(copy, from.dtype(), i * width), row.data(), row.bytes());
    }
  });
  return copy;
}

void scatter(ThreadPool& pool, const Tensor& to, std::span<const std::int64_t> rows, const void* from) {
  const std::int64_t width = to.dim(1);
  constexpr std::int64_t grain = 64;
  pool.parallel_for(static_cast<std::int64_t>(rows.size()), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Tensor row = to.rows(rows[static_cast<std::size_t>(i)], 1);
      std::memcpy(row.data(), advance(from, to.dtype(), i * width), row.bytes());
    }
  });
}

void chunk(ThreadPool& pool, const Ops::LinearCrossEntropy& a, std::span<const std::int64_t> rows, bool add_dweight,
           Bf16Path path) {
  thread_local Scratch memory;  // of the stream's thread
  const Shape shape = shape_of(a);
  const auto count = static_cast<std::int64_t>(rows.size());
  const bool neighbours = rows.back() - rows.front() + 1 == count, backward = static_cast<bool>(a.dhidden);
  const DType type = a.hidden.dtype();
  const auto [copy, dcopy] =
      memory.carve(neighbours ? 0 : count * shape.hidden, neighbours || !backward ? 0 : count * shape.hidden);
  const void* hidden = gather(pool, a.hidden, rows, copy);
  auto* logits = a.workspace.as<float>();

  gemm(pool,
       {.m = count,
        .n = shape.vocabulary,
        .k = shape.hidden,
        .ab = type,
        .a = hidden,
        .a_stride = shape.hidden,
        .b = a.weight.data(),
        .b_stride = shape.hidden,
        .b_transposed = true,
        .c = logits,
        .c_stride = shape.vocabulary},
       path);

  const auto* targets = a.targets.as<const std::int32_t>();
  auto* losses = a.losses.as<float>();
  pool.parallel_for(count, logits_grain, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> slopes(static_cast<std::size_t>(a.soft_cap > 0 && backward ? shape.vocabulary : 0));
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t n = rows[static_cast<std::size_t>(i)];
      float* row = logits + i * shape.vocabulary;
      if (a.soft_cap > 0) cap_row(row, slopes.empty() ? nullptr : slopes.data(), shape.vocabulary, a.soft_cap);
      losses[n] = loss_row(row, shape.vocabulary, targets[n], a.grad_scale, a.label_smoothing, backward);
      for (std::size_t v = 0; v < slopes.size(); ++v) row[v] *= slopes[v];
      if (backward && type == DType::bf16) narrow_in_place(row, shape.vocabulary);
    }
  });
  if (!backward) return;

  const std::int64_t stride = type == DType::bf16 ? 2 * shape.vocabulary : shape.vocabulary;  // in elements of the type
  void* dhidden = neighbours ? a.dhidden.rows(rows.front(), count).data() : dcopy;
  gemm(pool,
       {.m = count,
        .n = shape.hidden,
        .k = shape.vocabulary,
        .ab = type,
        .a = logits,
        .a_stride = stride,
        .b = a.weight.data(),
        .b_stride = shape.hidden,
        .c_type = type,
        .c = dhidden,
        .c_stride = shape.hidden},
       path);
  if (!neighbours) scatter(pool, a.dhidden, rows, dhidden);
  if (!a.dweight) return;
  gemm(pool,
       {.m = shape.vocabulary,
        .n = shape.hidden,
        .k = count,
        .ab = type,
        .a = logits,
        .a_stride = stride,
        .a_transposed = true,
        .b = hidden,
        .b_stride = shape.hidden,
        .c_type = a.dweight.dtype(),
        .c = a.dweight.data(),
        .c_stride = shape.hidden,
        .add = add_dweight},
       path);
}

}  // namespace

void linear_cross_entropy(ThreadPool& pool, const Ops::LinearCrossEntropy& a, Bf16Path path) {
  const std::vector<std::int64_t> rows = rows_with_target(a);
  zero_rows_without_target(pool, a);
  bool add = a.dweight_mode == Accumulate::add;
  if (a.dweight && rows.empty() && !add) std::memset(a.dweight.data(), 0, a.dweight.bytes());
  const auto limit = static_cast<std::size_t>(a.workspace.dim(0));
  for (std::size_t begin = 0; begin < rows.size(); begin += limit) {
    chunk(pool, a, std::span(rows).subspan(begin, std::min(limit, rows.size() - begin)), add, path);
    add = true;
  }
}

void CpuOps::soft_cap(Stream& stream, Tensor logits, float cap) {
  expect_soft_cap(logits, cap);
  cpu(stream).enqueue("soft_cap", WorkCategory::memory_bound, [=, &pool = cpu(stream).pool()] {
    pool.parallel_for(logits.dim(0), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) cap_row(logits.rows(n, 1).as<float>(), nullptr, logits.dim(1), cap);
    });
  });
}

void CpuOps::linear_cross_entropy(Stream& stream, const LinearCrossEntropy& args) {
  expect_linear_cross_entropy(args, memory());
  cpu(stream).enqueue("linear_cross_entropy", WorkCategory::matrix_products,
                      [args, &pool = cpu(stream).pool()] { so::linear_cross_entropy(pool, args); });
}

}  // namespace so
