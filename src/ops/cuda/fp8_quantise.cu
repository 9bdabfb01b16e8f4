// Rounding to FP8 in blocks: one pass over a matrix for its rows and its columns. Memory-bound.
#include "device/cuda/kernel.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/fp8_codes.h"
#include "ops/fp8_checks.h"

namespace so {
namespace {

using namespace kernel;
using fp8_square::own, fp8_square::side, fp8_square::threads;

// Where the elements of a row from a column on come from: a matrix of T.
template <class T>
struct Fp8Stored {
  const T* x;
  std::int64_t columns;
  __device__ Words<T, own> operator()(std::int64_t row, std::int64_t column) const {
    return fetch<own>(x + row * columns + column);
  }
};

// Or the norm of one, as add_rms_norm() made it.
template <class T>
struct Fp8Normed {
  const T *x, *weight;
  const float* inv_rms;
  float weight_offset;
  std::int64_t columns;
  __device__ Words<T, own> operator()(std::int64_t row, std::int64_t column) const {
    float v[own], w[own];
    load<own>(v, x + row * columns + column);
    load<own>(w, weight + column);
    const float r = inv_rms[row];
#pragma unroll
    for (int i = 0; i < own; ++i) w[i] = (weight_offset + w[i]) * (v[i] * r);
    return narrow<T>(w);
  }
};

// rows x columns elements; columns is a multiple of `side`.
template <class T, bool SQUARES, bool COLUMNS, class From>
__global__ void __launch_bounds__(threads, sizeof(T) == 2 ? 3 : 2)
    fp8_quantise_kernel(Fp8Target by_row, Fp8Target by_column, From from, std::int64_t rows) {
  __shared__ fp8_square::Shared shared;
  const std::int64_t column = std::int64_t{blockIdx.x} * side + threadIdx.x % fp8_square::across * own,
                     row = std::int64_t{blockIdx.y} * side + threadIdx.x / fp8_square::across * own;
  Words<T, own> words[own];
#pragma unroll
  for (int r = 0; r < own; ++r) words[r] = row + r < rows ? from(row + r, column) : Words<T, own>{};
  fp8_square::round<T, SQUARES, COLUMNS>(shared, by_row, by_column, words, blockIdx.y, blockIdx.x);
}

dim3 fp8_squares_of(std::int64_t rows, std::int64_t columns) {
  return dim3(blocks_for(columns, side), blocks_for(rows, side));
}

template <class T>
bool fp8_aligned(const Tensor& x) {
  return rows_aligned<T, pack_size<T>>(x.dim(x.rank() - 1), x.data());
}

}  // namespace

void CudaOps::fp8_quantise(Stream& stream, Fp8Matrix rows, Fp8Matrix columns, Tensor x) {
  expect_fp8_quantise(rows, columns, x);
  const cudaStream_t on = enter(stream);
  if (x.size() == 0) return;
  const bool squares = (rows ? rows : columns).blocks == Fp8Matrix::Blocks::squares;
  with_type(x.dtype(), [&]<class T> {
    SO_CHECK(fp8_aligned<T>(x), "fp8_quantise: rows that do not begin at 16 bytes");
    using From = Fp8Stored<T>;
    const auto run =
        squares ? (columns ? fp8_quantise_kernel<T, true, true, From> : fp8_quantise_kernel<T, true, false, From>)
                : (columns ? fp8_quantise_kernel<T, false, true, From> : fp8_quantise_kernel<T, false, false, From>);
    run<<<fp8_squares_of(x.dim(0), x.dim(1)), threads, 0, on>>>(target_of(rows, x.dim(0)), target_of(columns, x.dim(1)),
                                                                From{static_cast<const T*>(x.data()), x.dim(1)},
                                                                x.dim(0));
  });
  SO_CUDA_LAUNCHED("fp8_quantise");
}

void CudaOps::fp8_quantise_norm(Stream& stream, Fp8Matrix columns, Tensor x, Tensor inv_rms, Tensor weight,
                                float weight_offset) {
  const char* op = "fp8_quantise_norm";
  expect_fp8_quantise_norm(columns, x, inv_rms, weight);
  const cudaStream_t on = enter(stream);
  if (x.size() == 0) return;
  with_type(x.dtype(), [&]<class T> {
    SO_CHECK(fp8_aligned<T>(x) && fp8_aligned<T>(weight), "{}: rows that do not begin at 16 bytes", op);
    const Fp8Normed<T> from{static_cast<const T*>(x.data()), static_cast<const T*>(weight.data()), inv_rms.as<float>(),
                            weight_offset, x.dim(1)};
    fp8_quantise_kernel<T, true, true><<<fp8_squares_of(x.dim(0), x.dim(1)), threads, 0, on>>>(
        Fp8Target{}, target_of(columns, x.dim(1)), from, x.dim(0));
  });
  SO_CUDA_LAUNCHED(op);
}

}  // namespace so
