#include <initializer_list>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/expert_products.h"
#include "ops/cuda/grouped_gemm.h"
#include "ops/expert_checks.h"

namespace so {
namespace {

// Whether grouped_gemm.h serves. `sizes` are those of rows in memory, and of what lies between them.
bool on_matrix_units(int capability, DType dtype, std::initializer_list<std::int64_t> sizes,
                     std::initializer_list<const void*> pointers) {
  if (capability != 90 || dtype != DType::bf16) return false;
  for (const std::int64_t size : sizes)
    if (size == 0 || size % 8 != 0 || size >= (std::int64_t{1} << 31)) return false;
  for (const void* pointer : pointers)
    if (reinterpret_cast<std::uintptr_t>(pointer) % 16 != 0) return false;
  return true;
}

}  // namespace

void CudaOps::expert_rows(Stream& stream, Tensor out, Tensor a, Tensor w, bool transposed, Tensor offsets) {
  const cudaStream_t on = enter(stream);
  if (out.size() == 0) return;
  const std::int64_t columns = out.dim(1), inner = a.dim(1);
  if (!on_matrix_units(properties_.capability, a.dtype(), {columns, inner}, {out.data(), a.data(), w.data()}))
    return plain_expert_rows(on, out, a, w, transposed, offsets);
  const GroupedLaunch launch{on, properties_.index, properties_.multiprocessors, scratch_.data(), scratch_.bytes()};
  GroupedProduct product{out.data(), a.data(), w.data(), offsets.as<std::int32_t>(), w.dim(0)};
  product.columns = columns;
  product.inner = inner;
  if (transposed)
    grouped_rows_transposed(launch, product);
  else
    grouped_rows(launch, product);
}

void CudaOps::expert_linear(Stream& stream, Tensor out, Tensor x, Tensor w, ExpertLayout layout, Tensor offsets) {
  expect_expert_product("expert_linear", x, out, w, layout, offsets, false);
  expert_rows(stream, out, x, w, layout == ExpertLayout::out_in, offsets);
}

void CudaOps::expert_linear_grad_input(Stream& stream, Tensor dx, Tensor dy, Tensor w, ExpertLayout layout,
                                       Tensor offsets) {
  expect_expert_product("expert_linear_grad_input", dx, dy, w, layout, offsets, false);
  expert_rows(stream, dx, dy, w, layout == ExpertLayout::in_out, offsets);
}

void CudaOps::expert_linear_grad_weight(Stream& stream, Tensor dw, Tensor dy, Tensor x, ExpertLayout layout,
                                        Tensor offsets, Accumulate mode) {
  const ExpertProductSize size = expect_expert_product("expert_linear_grad_weight", x, dy, dw, layout, offsets, true);
  const cudaStream_t on = enter(stream);
  if (dw.size() == 0) return;
  // dw = a^T b.
  const bool out_in = layout == ExpertLayout::out_in;
  const Tensor a = out_in ? dy : x, b = out_in ? x : dy;
  if (size.rows == 0 ||
      !on_matrix_units(properties_.capability, x.dtype(), {size.in, size.out}, {dw.data(), dy.data(), x.data()}))
    return plain_expert_weights(on, dw, a, b, offsets, mode);
  if (mode == Accumulate::overwrite) clear_without_rows(on, dw, offsets);
  const GroupedLaunch launch{on, properties_.index, properties_.multiprocessors, scratch_.data(), scratch_.bytes()};
  GroupedProduct product{dw.data(), a.data(), b.data(), offsets.as<std::int32_t>(), size.experts};
  product.rows = dw.dim(1);
  product.columns = dw.dim(2);
  product.add = mode == Accumulate::add;
  if (dw.dtype() == DType::f32)
    grouped_weights_f32(launch, product);
  else
    grouped_weights_bf16(launch, product);
}

}  // namespace so
