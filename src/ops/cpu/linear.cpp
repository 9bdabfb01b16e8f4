
#include "ops/cpu/linear.h"

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/rows.h"

namespace so {
namespace {

struct LinearShape {
  std::int64_t tokens, in, out;
};

// Checks what the three products share: [tokens, in] and [tokens, out] on either side of something [out, in].
LinearShape check_linear(const Tensor& input_side, const Tensor& output_side, const Tensor& weight_side,
                         const char* op) {
  SO_CHECK(input_side.rank() == 2 && output_side.rank() == 2 && weight_side.rank() == 2, "{}", op);
  const LinearShape s{input_side.dim(0), input_side.dim(1), output_side.dim(1)};
  SO_CHECK(output_side.dim(0) == s.tokens && weight_side.dim(0) == s.out && weight_side.dim(1) == s.in,
           "{}: {} and {} with {}", op, shape_string(input_side.shape()), shape_string(output_side.shape()),
           shape_string(weight_side.shape()));
  return s;
}

void check_compute(DType type, const char* op) {
  SO_CHECK(type == DType::f32 || type == DType::bf16, "{} on {}", op, name_of(type));
}

void check_same(const Tensor& a, const Tensor& b, const char* op) {
  SO_CHECK(a.dtype() == b.dtype(), "{}: {} with {}", op, name_of(a.dtype()), name_of(b.dtype()));
}

void check_sum(const Tensor& sum, DType t, const char* op) {
  SO_CHECK(sum.dtype() == DType::f32 || sum.dtype() == t, "{}: {} into {}", op, name_of(t), name_of(sum.dtype()));
}

template <class T>
void add_rows(float* sums, const T* rows, std::int64_t count, std::int64_t width) {
  for (std::int64_t r = 0; r < count; ++r)
    for (std::int64_t c = 0; c < width; ++c) sums[c] += rows[r * width + c];
}

}  // namespace

void column_sums(ThreadPool& pool, Tensor sums, Tensor rows, Accumulate mode) {
  BlockSums blocks(rows.dim(0), rows.dim(1));
  pool.parallel_for(blocks.blocks(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const Tensor block = rows.rows(blocks.begin(b), blocks.end(b) - blocks.begin(b));
      if (rows.dtype() == DType::f32)
        add_rows(blocks.block(b), block.as<float>(), block.dim(0), block.dim(1));
      else
        add_rows(blocks.block(b), block.as<bf16>(), block.dim(0), block.dim(1));
    }
  });
  blocks.finish(pool, sums, mode);
}

Gemm linear_gemm(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias, bool add) {
  check_compute(x.dtype(), "linear");
  check_same(x, w, "linear");
  check_sum(out, x.dtype(), "linear");
  const LinearShape s = check_linear(x, out, w, "linear");
  if (bias) {
    check_same(bias, x, "linear bias");
    SO_CHECK(bias.size() == s.out, "bias {} for {} outputs", shape_string(bias.shape()), s.out);
  }
  return {.m = s.tokens,
          .n = s.out,
          .k = s.in,
          .ab = x.dtype(),
          .a = x.data(),
          .a_stride = s.in,
          .b = w.data(),
          .b_stride = s.in,
          .b_transposed = true,
          .bias = bias.data(),
          .c_type = out.dtype(),
          .c = out.data(),
          .c_stride = s.out,
          .add = add};
}

Gemm linear_grad_input_gemm(const Tensor& dx, const Tensor& dy, const Tensor& w, bool add) {
  check_compute(dy.dtype(), "linear_grad_input");
  check_same(dx, dy, "linear_grad_input");
  check_same(dy, w, "linear_grad_input");
  const LinearShape s = check_linear(dx, dy, w, "linear_grad_input");
  return {.m = s.tokens,
          .n = s.in,
          .k = s.out,
          .ab = dy.dtype(),
          .a = dy.data(),
          .a_stride = s.out,
          .b = w.data(),
          .b_stride = s.in,
          .c_type = dx.dtype(),
          .c = dx.data(),
          .c_stride = s.in,
          .add = add};
}

Gemm linear_grad_weight_gemm(const Tensor& dw, const Tensor& dy, const Tensor& x, bool add) {
  check_compute(dy.dtype(), "linear_grad_weight");
  check_same(dy, x, "linear_grad_weight");
  check_sum(dw, dy.dtype(), "linear_grad_weight");
  const LinearShape s = check_linear(x, dy, dw, "linear_grad_weight");
  return {.m = s.out,
          .n = s.in,
          .k = s.tokens,
          .ab = dy.dtype(),
          .a = dy.data(),
          .a_stride = s.out,
          .a_transposed = true,
          .b = x.data(),
          .b_stride = s.in,
          .c_type = dw.dtype(),
          .c = dw.data(),
          .c_stride = s.in,
          .add = add};
}

void CpuOps::linear(Stream& stream, Tensor out, Tensor x, Tensor w, Tensor bias, Accumulate mode) {
  const Gemm product = linear_gemm(out, x, w, bias, mode == Accumulate::add);
  cpu(stream).enqueue("linear", WorkCategory::matrix_products,
                      [&pool = cpu(stream).pool(), product] { gemm(pool, product); });
}

void CpuOps::linear_grad_input(Stream& stream, Tensor dx, Tensor dy, Tensor w, Accumulate mode) {
  const Gemm product = linear_grad_input_gemm(dx, dy, w, mode == Accumulate::add);
  cpu(stream).enqueue("linear_grad_input", WorkCategory::matrix_products,
                      [&pool = cpu(stream).pool(), product] { gemm(pool, product); });
}

void CpuOps::linear_grad_weight(Stream& stream, Tensor dw, Tensor dy, Tensor x, Accumulate mode) {
  const Gemm product = linear_grad_weight_gemm(dw, dy, x, mode == Accumulate::add);
  cpu(stream).enqueue("linear_grad_weight", WorkCategory::matrix_products,
                      [&pool = cpu(stream).pool(), product] { gemm(pool, product); });
}

void CpuOps::linear_grad_bias(Stream& stream, Tensor dbias, Tensor dy, Accumulate mode) {
  check_compute(dy.dtype(), "linear_grad_bias");
  check_sum(dbias, dy.dtype(), "linear_grad_bias");
  SO_CHECK(dy.rank() == 2 && dbias.size() == dy.dim(1), "linear_grad_bias: {} for {}", shape_string(dbias.shape()),
           shape_string(dy.shape()));
  cpu(stream).enqueue("linear_grad_bias", WorkCategory::memory_bound,
                      [=, &pool = cpu(stream).pool()] { column_sums(pool, dbias, dy, mode); });
}

}  // namespace so
