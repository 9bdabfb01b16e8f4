// Rows to the experts and back, and what the biases of experts take part in.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/rows.h"
#include "ops/expert_checks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/expert_rows.cpp"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "base/row_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace so::rows {
namespace HWY_NAMESPACE {

template <class T>
void sum_rows_as(Tensor out, Tensor y, Tensor bias, const Routing& routing, std::int64_t begin, std::int64_t end) {
  const std::int64_t choices = routing.experts.dim(1), width = out.dim(1);
  std::array<const T*, kMaxChoices> row, row_bias;
  std::array<float, kMaxChoices> weight;
  for (std::int64_t n = begin; n < end; ++n) {
    for (std::int64_t j = 0; j < choices; ++j) {
      const auto slot = static_cast<std::size_t>(j);
      const std::int32_t r = routing.rows.as<std::int32_t>()[n * choices + j];
      row[slot] = y.as<T>() + r * width;
      weight[slot] = routing.weights.as<float>()[r];
      const std::int32_t expert = routing.experts.as<std::int32_t>()[n * choices + j];
      row_bias[slot] = bias ? bias.as<T>() + expert * width : nullptr;
    }
    T* to = out.as<T>() + n * width;
    for_row(width, [&](auto d, std::int64_t i) HWY_ATTR {
      auto sum = hn::Zero(d);
      for (std::size_t j = 0; j < static_cast<std::size_t>(choices); ++j) {
        sum = hn::Add(sum, load(d, row[j] + i));
        if (bias) sum = hn::MulAdd(hn::Set(d, weight[j]), load(d, row_bias[j] + i), sum);
      }
      store(d, sum, to + i);
    });
  }
}

void sum_rows(Tensor out, Tensor y, Tensor bias, const Routing& routing, std::int64_t begin, std::int64_t end) {
  if (out.dtype() == DType::bf16)
    sum_rows_as<bf16>(out, y, bias, routing, begin, end);
  else
    sum_rows_as<float>(out, y, bias, routing, begin, end);
}

template <class T>
void add_weighted_as(float* sums, const T* rows, std::int64_t stride, std::int64_t count, const float* weights,
                     std::int64_t width) {
  for_row(width, [=](auto d, std::int64_t i) HWY_ATTR {
    auto sum = hn::Zero(d);
    for (std::int64_t r = 0; r < count; ++r) {
      const auto term = load(d, rows + r * stride + i);
      sum = weights ? hn::MulAdd(hn::Set(d, weights[r]), term, sum) : hn::Add(sum, term);
    }
    store(d, sum, sums + i);
  });
}

// sums[i] = the sum over `count` rows, from `first`, of columns [column, column + width), each times its weight if
// there are weights.
void sum_columns(float* sums, Tensor rows, std::int64_t first, std::int64_t count, const float* weights,
                 std::int64_t column, std::int64_t width) {
  const std::int64_t stride = rows.dim(1), at = first * stride + column;
  if (weights) weights += first;
  if (rows.dtype() == DType::bf16)
    add_weighted_as(sums, rows.as<bf16>() + at, stride, count, weights, width);
  else
    add_weighted_as(sums, rows.as<float>() + at, stride, count, weights, width);
}

template <class T>
float dot_as(const T* x, const T* y, std::int64_t width) {
  return sum_row(width, [=](auto d, std::int64_t i) HWY_ATTR { return hn::Mul(load(d, x + i), load(d, y + i)); });
}

// Rows [begin, end) of dweights.
void bias_dot(Tensor dweights, Tensor dout, Tensor bias, const Routing& routing, std::int64_t begin, std::int64_t end) {
  const std::int64_t choices = routing.experts.dim(1), width = dout.dim(1);
  for (std::int64_t r = begin; r < end; ++r) {
    const std::int32_t pair = routing.pairs.as<std::int32_t>()[r];
    const std::int64_t from = pair / choices * width, by = routing.experts.as<std::int32_t>()[pair] * width;
    dweights.as<float>()[r] = dout.dtype() == DType::bf16
                                  ? dot_as(dout.as<bf16>() + from, bias.as<bf16>() + by, width)
                                  : dot_as(dout.as<float>() + from, bias.as<float>() + by, width);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace so::rows
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace so {
namespace rows {
namespace {

HWY_EXPORT(sum_rows);
HWY_EXPORT(sum_columns);
HWY_EXPORT(bias_dot);

void gather_rows(ThreadPool& pool, const Tensor& out, const Tensor& x, const Routing& routing) {
  const std::size_t row_bytes = static_cast<std::size_t>(x.dim(1)) * size_of(x.dtype());
  if (row_bytes == 0) return;
  const std::int64_t choices = routing.experts.dim(1);
  pool.parallel_for(out.dim(0), row_grain(x.dim(1)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t n = routing.pairs.as<std::int32_t>()[r] / choices;
      std::memcpy(static_cast<std::byte*>(out.data()) + static_cast<std::size_t>(r) * row_bytes,
                  static_cast<const std::byte*>(x.data()) + static_cast<std::size_t>(n) * row_bytes, row_bytes);
    }
  });
}

// A piece is some columns of an expert. Its rows are taken in blocks, as BlockSums does, fp32 within and double over
// them, so that a sum over many rows stays precise.
void expert_bias_grad(ThreadPool& pool, const Tensor& dbias, const Tensor& dy, const Routing& routing, bool weighted,
                      Accumulate mode) {
  constexpr std::int64_t columns = 256, block = BlockSums::kRows;
  const std::int64_t width = dy.dim(1), pieces = (width + columns - 1) / columns;
  const auto* offsets = routing.offsets.as<std::int32_t>();
  const float* weights = weighted ? routing.weights.as<float>() : nullptr;
  pool.parallel_for(dbias.dim(0) * pieces, 1, [&](std::int64_t first, std::int64_t last) {
    const auto sum_columns = HWY_DYNAMIC_DISPATCH(sum_columns);
    for (std::int64_t piece = first; piece < last; ++piece) {
      const std::int64_t e = piece / pieces, column = piece % pieces * columns,
                         count = std::min(columns, width - column);
      std::array<double, columns> totals{};
      std::array<float, columns> sums;
      for (std::int64_t r = offsets[e]; r < offsets[e + 1]; r += block) {
        sum_columns(sums.data(), dy, r, std::min<std::int64_t>(block, offsets[e + 1] - r), weights, column, count);
        for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) totals[i] += static_cast<double>(sums[i]);
      }
      const auto put = [&](auto* to) {
        for (std::int64_t i = 0; i < count; ++i) {
          const double old = mode == Accumulate::add ? static_cast<double>(static_cast<float>(to[i])) : 0.0;
          to[i] = std::remove_pointer_t<decltype(to)>(static_cast<float>(old + totals[static_cast<std::size_t>(i)]));
        }
      };
      const std::int64_t at = e * width + column;
      dbias.dtype() == DType::bf16 ? put(dbias.as<bf16>() + at) : put(dbias.as<float>() + at);
    }
  });
}

}  // namespace
}  // namespace rows

void CpuOps::gather_rows(Stream& stream, Tensor out, Tensor x, const Routing& routing) {
  expect_gather_rows("gather_rows", out, x, routing);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("gather_rows", WorkCategory::memory_bound,
                      [=, &pool] { rows::gather_rows(pool, out, x, routing); });
}

void CpuOps::sum_rows(Stream& stream, Tensor out, Tensor y, Tensor bias, const Routing& routing) {
  const RoutingSize size = expect_sum_rows("sum_rows", out, y, bias, routing);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("sum_rows", WorkCategory::memory_bound, [=, &pool] {
    pool.parallel_for(size.tokens, row_grain(out.dim(1) * size.choices), [&](std::int64_t begin, std::int64_t end) {
      HWY_DYNAMIC_DISPATCH(rows::sum_rows)(out, y, bias, routing, begin, end);
    });
  });
}

void CpuOps::expert_bias_grad(Stream& stream, Tensor dbias, Tensor dy, const Routing& routing, bool weighted,
                              Accumulate mode) {
  expect_expert_bias_grad("expert_bias_grad", dbias, dy, routing);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("expert_bias_grad", WorkCategory::memory_bound,
                      [=, &pool] { rows::expert_bias_grad(pool, dbias, dy, routing, weighted, mode); });
}

void CpuOps::expert_bias_dot(Stream& stream, Tensor dweights, Tensor dout, Tensor bias, const Routing& routing) {
  const RoutingSize size = expect_expert_bias_dot("expert_bias_dot", dweights, dout, bias, routing);
  ThreadPool& pool = cpu(stream).pool();
  cpu(stream).enqueue("expert_bias_dot", WorkCategory::memory_bound, [=, &pool] {
    pool.parallel_for(size.rows, row_grain(dout.dim(1)), [&](std::int64_t begin, std::int64_t end) {
      HWY_DYNAMIC_DISPATCH(rows::bias_dot)(dweights, dout, bias, routing, begin, end);
    });
  });
}

}  // namespace so
#endif
