// Matrix products on the CPU, for the ops of this folder. oneDNN multiplies one tile on one thread; which tiles there
// are, and which thread does which, is decided here.
//
// Determinism: tiles are cut from the shape alone and the inner dimension is never split over threads, so the bits of
// the result do not depend on the pool. Arithmetic is fp32: bf16 products are exact in fp32, sums are fp32, and a bf16
// result is rounded once, after bias and old contents were added. (The bf16 instructions of AVX-512 take denormal
// inputs for zero.)
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"

namespace so {

class ThreadPool;

// C = op(A) op(B) (+ bias) (+ C), row-major. op(A) is [m, k] and op(B) [k, n]; a transposed operand is stored [k, m] or
// [n, k]. Strides count elements from row to row as stored.
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0;
  DType ab = DType::f32;  // of A, B and the bias: f32 or bf16
  const void* a = nullptr;
  std::int64_t a_stride = 0;
  bool a_transposed = false;
  const void* b = nullptr;
  std::int64_t b_stride = 0;
  bool b_transposed = false;
  const void* bias = nullptr;  // [n], added to each row; null: none
  DType c_type = DType::f32;   // f32, or bf16 when ab is
  void* c = nullptr;
  std::int64_t c_stride = 0;
  bool add = false;  // to what C holds
};

// How a bf16 tile is multiplied: by the CPU's bf16 instructions, or widened to fp32 first.
enum class Bf16Path : std::uint8_t { native, widened };

// Returns the path of this CPU: native with AVX512_BF16 (or AMX), else widened.
Bf16Path best_bf16_path();

// Computes a product on the pool. Operands must not overlap C. A k of zero makes C bias (+ C).
void gemm(ThreadPool& pool, const Gemm& gemm, Bf16Path path = best_bf16_path());

// Computes many products, no two with the same C, as one job of the pool, so that small ones keep all threads busy.
void gemm(ThreadPool& pool, std::span<const Gemm> products, Bf16Path path = best_bf16_path());

// The same on the calling thread alone, as one tile: for ops that do their own cutting.
void gemm_tile(const Gemm& gemm, Bf16Path path = best_bf16_path());

}  // namespace so
