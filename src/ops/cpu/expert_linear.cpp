// Every expert's rows through its own weight: a product for each expert, all of them cut into tiles together.
#include <cstdint>
#include <vector>

#include "ops/cpu/convert.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/gemm.h"
#include "ops/expert_checks.h"

namespace so {
namespace {

// describe(first, count, e): the product of expert e, whose rows are [first, first + count).
template <class Describe>
void each_expert(ThreadPool& pool, const char* op, const Tensor& offsets, const ExpertProductSize& size,
                 const Describe& describe) {
  const auto* at = offsets.as<std::int32_t>();
  std::vector<Gemm> products;
  for (std::int64_t e = 0; e < size.experts; ++e) {
    SO_CHECK(at[e] >= 0 && at[e] <= at[e + 1] && at[e + 1] <= size.rows, "{}: expert {} has the rows [{}, {}) of {}",
             op, e, at[e], at[e + 1], size.rows);
    products.push_back(describe(std::int64_t{at[e]}, std::int64_t{at[e + 1] - at[e]}, e));
  }
  gemm(pool, products);
}

}  // namespace

void CpuOps::expert_linear(Stream& stream, Tensor out, Tensor x, Tensor w, ExpertLayout layout, Tensor offsets) {
  const char* op = "expert_linear";
  const ExpertProductSize size = expect_expert_product(op, x, out, w, layout, offsets, false);
  const bool out_in = layout == ExpertLayout::out_in;
  cpu(stream).enqueue(op, WorkCategory::matrix_products, [=, &pool = cpu(stream).pool()] {
    each_expert(pool, op, offsets, size, [&](std::int64_t first, std::int64_t count, std::int64_t e) {
      return Gemm{.m = count,
                  .n = size.out,
                  .k = size.in,
                  .ab = x.dtype(),
                  .a = advance(x.data(), x.dtype(), first * size.in),
                  .a_stride = size.in,
                  .b = advance(w.data(), w.dtype(), e * size.out * size.in),
                  .b_stride = out_in ? size.in : size.out,
                  .b_transposed = out_in,
                  .c_type = out.dtype(),
                  .c = advance(out.data(), out.dtype(), first * size.out),
                  .c_stride = size.out};
    });
  });
}

void CpuOps::expert_linear_grad_input(Stream& stream, Tensor dx, Tensor dy, Tensor w, ExpertLayout layout,
                                      Tensor offsets) {
  const char* op = "expert_linear_grad_input";
  const ExpertProductSize size = expect_expert_product(op, dx, dy, w, layout, offsets, false);
  const bool out_in = layout == ExpertLayout::out_in;
  cpu(stream).enqueue(op, WorkCategory::matrix_products, [=, &pool = cpu(stream).pool()] {
    each_expert(pool, op, offsets, size, [&](std::int64_t first, std::int64_t count, std::int64_t e) {
      return Gemm{.m = count,
                  .n = size.in,
                  .k = size.out,
                  .ab = dy.dtype(),
                  .a = advance(dy.data(), dy.dtype(), first * size.out),
                  .a_stride = size.out,
                  .b = advance(w.data(), w.dtype(), e * size.out * size.in),
                  .b_stride = out_in ? size.in : size.out,
                  .b_transposed = !out_in,
                  .c_type = dx.dtype(),
                  .c = advance(dx.data(), dx.dtype(), first * size.in),
                  .c_stride = size.in};
    });
  });
}

void CpuOps::expert_linear_grad_weight(Stream& stream, Tensor dw, Tensor dy, Tensor x, ExpertLayout layout,
                                       Tensor offsets, Accumulate mode) {
  const char* op = "expert_linear_grad_weight";
  const ExpertProductSize size = expect_expert_product(op, x, dy, dw, layout, offsets, true);
  // dw = left^T right.
  const bool out_in = layout == ExpertLayout::out_in;
  const Tensor left = out_in ? dy : x, right = out_in ? x : dy;
  cpu(stream).enqueue(op, WorkCategory::matrix_products, [=, &pool = cpu(stream).pool()] {
    each_expert(pool, op, offsets, size, [&](std::int64_t first, std::int64_t count, std::int64_t e) {
      return Gemm{.m = left.dim(1),
                  .n = right.dim(1),
                  .k = count,
                  .ab = x.dtype(),
                  .a = advance(left.data(), left.dtype(), first * left.dim(1)),
                  .a_stride = left.dim(1),
                  .a_transposed = true,
                  .b = advance(right.data(), right.dtype(), first * right.dim(1)),
                  .b_stride = right.dim(1),
                  .c_type = dw.dtype(),
                  .c = advance(dw.data(), dw.dtype(), e * size.out * size.in),
                  .c_stride = right.dim(1),
                  .add = mode == Accumulate::add};
    });
  });
}

}  // namespace so
