// The activations of an MLP and their gradients, gated [Shazeer 2020], SwiGLU and GEGLU, and the square of ReLU:
// memory-bound, each byte read and written once.
#include "device/cuda/kernel.h"
#include "ops/checks.h"
#include "ops/cuda/activation.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/fp8_codes.h"
#include "ops/fp8_checks.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 256;

// Grid: x over rows, y over pieces of a row.
template <class T, int N, MlpActivation ACT>
__global__ void __launch_bounds__(threads) swiglu_kernel(T* out, const T* gate_up, std::int64_t width) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.y) * threads + threadIdx.x) * N, row = blockIdx.x;
  if (i >= width) return;
  const T* from = gate_up + row * 2 * width + i;
  float gate[N], up[N];
  load<N>(gate, from);
  load<N>(up, from + width);
#pragma unroll
  for (int j = 0; j < N; ++j) up[j] = gated<T, ACT>(gate[j], up[j]);
  store<N>(out + row * width + i, up);
}

// Outputs may lie on inputs: an element's inputs are read by the thread that writes its outputs, before it does.
template <class T, int N, MlpActivation ACT>
__global__ void __launch_bounds__(threads)
    swiglu_grad_kernel(T* dgate_up, T* activated, const T* dout, const T* gate_up, std::int64_t width) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.y) * threads + threadIdx.x) * N, row = blockIdx.x;
  if (i >= width) return;
  const std::int64_t at = row * 2 * width + i;
  float gate[N], up[N], dy[N];
  load<N>(gate, gate_up + at);
  load<N>(up, gate_up + at + width);
  load<N>(dy, dout + row * width + i);
#pragma unroll
  for (int j = 0; j < N; ++j) gated_grad<T, ACT>(gate[j], up[j], dy[j]);
  store<N>(dgate_up + at, gate);
  store<N>(dgate_up + at + width, up);
  if (activated) store<N>(activated + row * width + i, dy);
}

template <class T, int N>
__global__ void __launch_bounds__(threads) relu_squared_kernel(T* out, const T* up, std::int64_t width) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.y) * threads + threadIdx.x) * N, row = blockIdx.x;
  if (i >= width) return;
  float x[N];
  load<N>(x, up + row * width + i);
#pragma unroll
  for (int j = 0; j < N; ++j) x[j] = relu_squared(x[j]);
  store<N>(out + row * width + i, x);
}

// Outputs may lie on inputs, as above.
template <class T, int N>
__global__ void __launch_bounds__(threads)
    relu_squared_grad_kernel(T* dup, T* activated, const T* dout, const T* up, std::int64_t width) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.y) * threads + threadIdx.x) * N, row = blockIdx.x;
  if (i >= width) return;
  const std::int64_t at = row * width + i;
  float x[N], dy[N];
  load<N>(x, up + at);
  load<N>(dy, dout + at);
#pragma unroll
  for (int j = 0; j < N; ++j) relu_squared_grad(x[j], dy[j]);
  store<N>(dup + at, x);
  if (activated) store<N>(activated + at, dy);
}

// Both, with codes; out may be null. Grid: as above, with the rows of zeros that fill up a four.
template <class T, int N, MlpActivation ACT>
__global__ void __launch_bounds__(threads)
    fp8_activation_kernel(Fp8Target to, T* out, const T* inputs, std::int64_t width) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.y) * threads + threadIdx.x) * N, row = blockIdx.x;
  if (i >= width) return;  // with its block of 128
  float y[N] = {};
  if (row < to.rows) {
    if constexpr (ACT == MlpActivation::relu_squared) {
      load<N>(y, inputs + row * width + i);
#pragma unroll
      for (int j = 0; j < N; ++j) y[j] = relu_squared(y[j]);
    } else {
      const T* from = inputs + row * 2 * width + i;
      float gate[N];
      load<N>(gate, from);
      load<N>(y, from + width);
#pragma unroll
      for (int j = 0; j < N; ++j) y[j] = gated<T, ACT>(gate[j], y[j]);
    }
    const Words<T, N> rounded = narrow<T>(y);
    if (out) store_words(out + row * width + i, rounded.at);
    widen<T>(y, rounded);
  }
  round_part_of_row(to, row, i, y);
}

dim3 grid_of(std::int64_t rows, std::int64_t width, int pack) {
  return dim3(blocks_for(rows, 1), blocks_for(width, static_cast<std::int64_t>(threads) * pack));
}

template <MlpActivation ACT, int N, class T>
void launch(T* out, const T* inputs, std::int64_t rows, std::int64_t width, cudaStream_t on) {
  if constexpr (ACT == MlpActivation::relu_squared)
    relu_squared_kernel<T, N><<<grid_of(rows, width, N), threads, 0, on>>>(out, inputs, width);
  else
    swiglu_kernel<T, N, ACT><<<grid_of(rows, width, N), threads, 0, on>>>(out, inputs, width);
}

template <MlpActivation ACT, int N, class T>
void launch_grad(T* dinputs, T* activated, const T* dout, const T* inputs, std::int64_t rows, std::int64_t width,
                 cudaStream_t on) {
  const dim3 grid = grid_of(rows, width, N);
  if constexpr (ACT == MlpActivation::relu_squared)
    relu_squared_grad_kernel<T, N><<<grid, threads, 0, on>>>(dinputs, activated, dout, inputs, width);
  else
    swiglu_grad_kernel<T, N, ACT><<<grid, threads, 0, on>>>(dinputs, activated, dout, inputs, width);
}

}  // namespace

void CudaOps::swiglu(Stream& stream, Tensor out, Tensor gate_up, MlpActivation activation, Fp8Matrix codes) {
  const char* op = "swiglu";
  expect_swiglu(out, gate_up, activation, codes);
  const std::int64_t rows = gate_up.dim(0), width = gate_up.dim(1) / inputs_of(activation);
  const cudaStream_t on = enter(stream);
  if (gate_up.size() == 0) return;
  with_type(gate_up.dtype(), [&]<class T> {
    auto* to = static_cast<T*>(out.data());
    const auto* from = static_cast<const T*>(gate_up.data());
    constexpr int N = pack_size<T>;
    const bool aligned = rows_aligned<T, N>(width, to, from);
    SO_CHECK(aligned || !codes, "{}: rows that do not begin at 16 bytes", op);
    with_activation(activation, [&]<MlpActivation ACT> {
      if (codes)
        fp8_activation_kernel<T, N, ACT>
            <<<grid_of(fp8_stored_rows(rows), width, N), threads, 0, on>>>(target_of(codes, rows), to, from, width);
      else if (aligned)
        launch<ACT, N>(to, from, rows, width, on);
      else
        launch<ACT, 1>(to, from, rows, width, on);
    });
  });
  SO_CUDA_LAUNCHED(op);
}

void CudaOps::swiglu_grad(Stream& stream, Tensor dgate_up, Tensor dout, Tensor gate_up, Tensor activated,
                          MlpActivation activation) {
  const char* op = "swiglu_grad";
  SO_CHECK(dout.rank() == 2, "{}: dout is {}", op, shape_string(dout.shape()));
  expect_compute_dtype(op, "dout", dout.dtype());
  const std::int64_t rows = dout.dim(0), width = dout.dim(1);
  expect_tensor(op, "dout", dout, dout.dtype(), {rows, width});
  expect_tensor(op, "gate_up", gate_up, dout.dtype(), {rows, inputs_of(activation) * width});
  expect_tensor(op, "dgate_up", dgate_up, dout.dtype(), {rows, inputs_of(activation) * width});
  if (activated) expect_tensor(op, "activated", activated, dout.dtype(), {rows, width});
  const cudaStream_t on = enter(stream);
  if (dout.size() == 0) return;
  with_type(dout.dtype(), [&]<class T> {
    auto *dx = static_cast<T*>(dgate_up.data()), *again = static_cast<T*>(activated.data());
    const auto *dy = static_cast<const T*>(dout.data()), *x = static_cast<const T*>(gate_up.data());
    constexpr int N = pack_size<T>;
    with_activation(activation, [&]<MlpActivation ACT> {
      if (rows_aligned<T, N>(width, dx, again, dy, x))
        launch_grad<ACT, N>(dx, again, dy, x, rows, width, on);
      else
        launch_grad<ACT, 1>(dx, again, dy, x, rows, width, on);
    });
  });
  SO_CUDA_LAUNCHED(op);
}

}  // namespace so
