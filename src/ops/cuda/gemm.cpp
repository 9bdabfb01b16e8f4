#include "ops/cuda/gemm.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "device/cuda/cublas_lt.h"
#include "device/cuda/cuda_check.h"
#include "ops/checks.h"
#include "ops/cuda/column_sums.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/fp8_checks.h"
#include "ops/fp8_layout.h"
#include "ops/ops_memory.h"

namespace so {
namespace {

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail("cuBLASLt: {}: {}", call, cublas_lt().status_string(status));
}
#define SO_CUBLAS(call) check((call), #call)

cudaDataType_t cuda_type(DType dtype) {
  if (dtype == DType::u8) return CUDA_R_8F_E4M3;
  return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

// The largest power of two that divides the address, as far as it matters (16-byte accesses of matrix tiles).
std::uint32_t pointer_alignment(const void* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p) | 256;
  return static_cast<std::uint32_t>(address & (~address + 1));
}

}  // namespace

// Descriptors and the algorithm of one kind of product. cuBLASLt thinks in columns: it computes the transposed product
// out^T = b^T a^T: read as column-major, row-major matrices are already transposed.
struct CudaGemm::Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    for (const auto layout : {first, second, out})
      if (layout) cublas_lt().layout_destroy(layout);
    if (operation) cublas_lt().operation_destroy(operation);
  }
};

CudaGemm::CudaGemm(void* workspace, std::size_t workspace_bytes)
    : workspace_(workspace), workspace_bytes_(workspace_bytes - reserved_bytes) {
  SO_CUBLAS(cublas_lt().create(&handle_));
}

void* CudaGemm::reserved(std::size_t bytes) const {
  SO_CHECK(bytes <= reserved_bytes, "{} bytes beside the workspace of products, where there are {}", bytes,
           reserved_bytes);
  return static_cast<std::byte*>(workspace_) + workspace_bytes_;
}

CudaGemm::~CudaGemm() {
  plans_.clear();
  cublas_lt().destroy(handle_);
}

CudaGemm::Plan& CudaGemm::plan(const Product& p, const Key& key) {
  // The number of tokens differs from batch to batch, so plans would add up over a long run. Looking one up again gives
  // the same one.
  constexpr std::size_t most_plans = 4096;
  if (plans_.size() >= most_plans && !plans_.contains(key)) plans_.clear();
  const auto [found, added] = plans_.try_emplace(key);
  Plan& plan = found->second;
  if (!added) return plan;

  SO_CUBLAS(cublas_lt().operation_create(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    SO_CUBLAS(cublas_lt().operation_set(plan.operation, attribute, &value, sizeof value));
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (p.bias) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(p.bias.dtype()));
  }
  if (p.a_scales) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
    // The choice of an algorithm wants to see scales; those of a call are set when it is made.
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(p.b_scales.data()));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(p.a_scales.data()));
  }
  const auto layout = [](cublasLtMatrixLayout_t& to, DType dtype, std::int64_t rows, std::int64_t columns,
                         std::int64_t stride) {
    SO_CUBLAS(cublas_lt().layout_create(&to, cuda_type(dtype), static_cast<std::uint64_t>(columns),
                                        static_cast<std::uint64_t>(rows), stride > 0 ? stride : columns));
  };
  layout(plan.first, p.b.dtype(), p.transpose_b ? p.columns : p.inner, p.transpose_b ? p.inner : p.columns, 0);
  layout(plan.second, p.a.dtype(), p.transpose_a ? p.inner : p.rows, p.transpose_a ? p.rows : p.inner, p.a_stride);
  layout(plan.out, p.out.dtype(), p.rows, p.columns, p.out_stride);

  cublasLtMatmulPreference_t preference = nullptr;
  SO_CUBLAS(cublas_lt().preference_create(&preference));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    SO_CUBLAS(cublas_lt().preference_set(preference, attribute, &value, sizeof value));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes_));
  // Parts of a sum that is split over its length meet in fp32, not rounded to bf16 before they are added.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, pointer_alignment(p.b.data()));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, pointer_alignment(p.a.data()));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, pointer_alignment(p.out.data()));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, pointer_alignment(p.out.data()));
  cublasLtMatmulHeuristicResult_t result{};
  int count = 0;
  const cublasStatus_t status = cublas_lt().heuristic(handle_, plan.operation, plan.first, plan.second, plan.out,
                                                      plan.out, preference, 1, &result, &count);
  cublas_lt().preference_destroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
    plans_.erase(found);
    fail("cuBLASLt has no algorithm for [{}, {}] = [{}, {}] x [{}, {}] in {} to {} ({})", p.rows, p.columns, p.rows,
         p.inner, p.inner, p.columns, name_of(p.a.dtype()), name_of(p.out.dtype()), cublas_lt().status_string(status));
  }
  plan.algorithm = result.algo;
  return plan;
}

void CudaGemm::run(cudaStream_t stream, const Product& p) {
  // Which size is the length of the rows that have a stride.
  std::int64_t Product::*length = p.out_stride > 0  ? &Product::columns
                                  : p.a_stride == 0 ? nullptr
                                  : p.transpose_a   ? &Product::rows
                                                    : &Product::inner;
  const std::int64_t rest = length ? p.*length % gemm_multiple : 0;
  if (rest == 0 || rest == p.*length || p.a.dtype() != DType::bf16) return run_whole(stream, p);
  // Neither part of b may need a stride of its own.
  SO_CHECK(!p.bias && p.transpose_b == (length == &Product::columns), "a product that cannot be done in two parts");
  const std::int64_t most = p.*length - rest;
  Product first = p, last = p;
  first.*length = most, last.*length = rest;
  const auto skip = [](Tensor& matrix, std::int64_t elements) {
    matrix =
        Tensor(static_cast<std::byte*>(matrix.data()) + elements * static_cast<std::int64_t>(size_of(matrix.dtype())),
               matrix.dtype(), {1});
  };
  if (length == &Product::columns) {
    skip(last.b, most * p.inner);
    skip(last.out, most);
  } else {
    skip(last.a, most);
    skip(length == &Product::rows ? last.out : last.b, most * p.columns);
  }
  // Of a sum in two parts the small one comes first, so that its rounding is the smaller.
  run_whole(stream, last);
  if (length == &Product::inner) first.mode = Accumulate::add;
  run_whole(stream, first);
}

void CudaGemm::run_whole(cudaStream_t stream, const Product& p) {
  if (p.rows == 0 || p.columns == 0) return;
  if (p.inner == 0) {  // an empty sum
    SO_CHECK(!p.bias, "a product over nothing with a bias");
    if (p.mode == Accumulate::overwrite) SO_CUDA(cudaMemsetAsync(p.out.data(), 0, p.out.bytes(), stream));
    return;
  }
  const int types = static_cast<int>(p.out.dtype()) * 16 + static_cast<int>(p.a.dtype());
  const int flags =
      (p.transpose_a ? 1 : 0) | (p.transpose_b ? 2 : 0) | (p.bias ? 4 : 0) | (p.mode == Accumulate::add ? 8 : 0);
  const auto low_bits = [](const void* x) { return std::countr_zero(pointer_alignment(x)); };
  const int aligned = (low_bits(p.a.data()) * 16 + low_bits(p.b.data())) * 16 + low_bits(p.out.data());
  Plan& plan = this->plan(p, {p.rows, p.columns, p.inner, p.a_stride, p.out_stride, types, flags, aligned});
  const auto point = [&](cublasLtMatmulDescAttributes_t attribute, const Tensor& tensor) {
    const void* at = tensor.data();
    if (tensor) SO_CUBLAS(cublas_lt().operation_set(plan.operation, attribute, &at, sizeof at));
  };
  point(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  point(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.b_scales);
  point(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.a_scales);
  const float one = 1, beta = p.mode == Accumulate::add ? 1.0f : 0.0f;
  SO_CUBLAS(cublas_lt().matmul(handle_, plan.operation, &one, p.b.data(), plan.first, p.a.data(), plan.second, &beta,
                               p.out.data(), plan.out, p.out.data(), plan.out, &plan.algorithm, workspace_,
                               workspace_bytes_, stream));
}

void CudaOps::linear(Stream& stream, Tensor out, Tensor x, Tensor w, Tensor bias, Accumulate mode) {
  const char* op = "linear";
  SO_CHECK(x.rank() == 2 && w.rank() == 2, "{}: x is {}, w {}", op, shape_string(x.shape()), shape_string(w.shape()));
  expect_compute_dtype(op, "x", x.dtype());
  const std::int64_t n = x.dim(0), in = x.dim(1), o = w.dim(0);
  expect_tensor(op, "x", x, x.dtype(), {n, in});
  expect_tensor(op, "w", w, x.dtype(), {o, in});
  expect_gradient(op, "out", out, x.dtype(), {n, o});  // f32 or T
  if (bias) expect_tensor(op, "bias", bias, x.dtype(), {o});
  const cudaStream_t on = enter(stream);
  if (bias && bias.dtype() != out.dtype()) {  // no fused epilogue for that: the sum begins with the bias
    add_bias_rows(on, out, bias, mode);
    bias = Tensor(), mode = Accumulate::add;
  }
  gemm_->run(on, {out, x, w, bias, false, true, n, o, in, mode});
}

void CudaOps::linear_grad_input(Stream& stream, Tensor dx, Tensor dy, Tensor w, Accumulate mode) {
  const char* op = "linear_grad_input";
  SO_CHECK(dy.rank() == 2 && w.rank() == 2, "{}: dy is {}, w {}", op, shape_string(dy.shape()),
           shape_string(w.shape()));
  expect_compute_dtype(op, "dy", dy.dtype());
  const std::int64_t n = dy.dim(0), o = dy.dim(1), in = w.dim(1);
  expect_tensor(op, "dy", dy, dy.dtype(), {n, o});
  expect_tensor(op, "w", w, dy.dtype(), {o, in});
  expect_tensor(op, "dx", dx, dy.dtype(), {n, in});
  gemm_->run(enter(stream), {dx, dy, w, Tensor(), false, false, n, in, o, mode});
}

void CudaOps::linear_grad_weight(Stream& stream, Tensor dw, Tensor dy, Tensor x, Accumulate mode) {
  const char* op = "linear_grad_weight";
  SO_CHECK(dy.rank() == 2 && x.rank() == 2, "{}: dy is {}, x {}", op, shape_string(dy.shape()),
           shape_string(x.shape()));
  expect_compute_dtype(op, "dy", dy.dtype());
  const std::int64_t n = dy.dim(0), o = dy.dim(1), in = x.dim(1);
  expect_tensor(op, "dy", dy, dy.dtype(), {n, o});
  expect_tensor(op, "x", x, dy.dtype(), {n, in});
  expect_gradient(op, "dw", dw, dy.dtype(), {o, in});
  gemm_->run(enter(stream), {dw, dy, x, Tensor(), true, false, o, in, n, mode});
}

// cuBLASLt 13 has scales of 128 elements on Hopper alone.
bool CudaOps::multiplies_fp8() const { return properties_.capability == 90; }

void CudaOps::fp8_product(Stream& stream, Tensor out, Fp8Matrix a, Fp8Matrix b, Tensor bias, Accumulate mode) {
  expect_fp8_product(out, a, b, bias);
  const cudaStream_t on = enter(stream);
  if (bias) {  // no fused epilogue with scales of blocks: the sum begins with the bias
    add_bias_rows(on, out, bias, mode);
    mode = Accumulate::add;
  }
  // The rows of a last four that is not whole are multiplied apart, with room for all four (ops/fp8_layout.h).
  const std::int64_t whole = fp8_whole_rows(out.dim(0)), rest = out.dim(0) - whole, columns = out.dim(1);
  Product product{.out = out,
                  .a = a.codes,
                  .b = b.codes,
                  .transpose_b = true,
                  .rows = whole,
                  .columns = columns,
                  .inner = a.codes.dim(1),
                  .mode = mode,
                  .a_scales = a.scales,
                  .b_scales = b.scales};
  gemm_->run(on, product);
  if (rest == 0) return;
  const Tensor last = out.rows(whole, rest);
  const std::size_t bytes = last.bytes(), room = bytes / static_cast<std::size_t>(rest) * fp8_rows_at_once;
  product.out = Tensor(gemm_->reserved(room), out.dtype(), {fp8_rows_at_once, columns});
  product.a = a.codes.rows(whole, fp8_rows_at_once);
  product.a_scales = Tensor(a.scales.as<float>() + whole * (product.inner / fp8_block), DType::f32, {1});
  product.rows = fp8_rows_at_once;
  if (mode == Accumulate::add)
    SO_CUDA(cudaMemcpyAsync(product.out.data(), last.data(), bytes, cudaMemcpyDeviceToDevice, on));
  gemm_->run(on, product);
  SO_CUDA(cudaMemcpyAsync(last.data(), product.out.data(), bytes, cudaMemcpyDeviceToDevice, on));
}

}  // namespace so
