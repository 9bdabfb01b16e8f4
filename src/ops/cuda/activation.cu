// SwiGLU [Shazeer 2020] and its gradient: memory-bound, each byte read and written once.
#include "device/cuda/kernel.h"
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/sigmoid.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 256;

// Grid: x over rows, y over pieces of a row.
template <class T, int N>
__global__ void __launch_bounds__(threads) swiglu_kernel(T* out, const T* gate_up, std::int64_t width) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.y) * threads + threadIdx.x) * N, row = blockIdx.x;
  if (i >= width) return;
  const T* from = gate_up + row * 2 * width + i;
  float gate[N], up[N];
  load<N>(gate, from);
  load<N>(up, from + width);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    float s, complement;
    sigmoid<T>(gate[j], s, complement);
    up[j] *= gate[j] * s;
  }
  store<N>(out + row * width + i, up);
}

// silu'(g) = s + g s (1 - s), s = sigmoid(g). Outputs may lie on inputs: an element's inputs are read by the thread
// that writes its outputs, before it does.
template <class T, int N>
__global__ void __launch_bounds__(threads)
    swiglu_grad_kernel(T* dgate_up, T* activated, const T* dout, const T* gate_up, std::int64_t width) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.y) * threads + threadIdx.x) * N, row = blockIdx.x;
  if (i >= width) return;
  const std::int64_t at = row * 2 * width + i;
  float gate[N], up[N], dy[N], again[N];
  load<N>(gate, gate_up + at);
  load<N>(up, gate_up + at + width);
  load<N>(dy, dout + row * width + i);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    float s, complement;
    sigmoid<T>(gate[j], s, complement);
    const float silu = gate[j] * s;
    again[j] = silu * up[j];
    gate[j] = dy[j] * up[j] * (s + silu * complement);
    up[j] = dy[j] * silu;
  }
  store<N>(dgate_up + at, gate);
  store<N>(dgate_up + at + width, up);
  if (activated) store<N>(activated + row * width + i, again);
}

dim3 grid_of(std::int64_t rows, std::int64_t width, int pack) {
  return dim3(blocks_for(rows, 1), blocks_for(width, static_cast<std::int64_t>(threads) * pack));
}

}  // namespace

void CudaOps::swiglu(Stream& stream, Tensor out, Tensor gate_up) {
  const char* op = "swiglu";
  SO_CHECK(out.rank() == 2, "{}: out is {}", op, shape_string(out.shape()));
  expect_compute_dtype(op, "out", out.dtype());
  const std::int64_t rows = out.dim(0), width = out.dim(1);
  expect_tensor(op, "out", out, out.dtype(), {rows, width});
  expect_tensor(op, "gate_up", gate_up, out.dtype(), {rows, 2 * width});
  const cudaStream_t on = enter(stream);
  if (out.size() == 0) return;
  with_type(out.dtype(), [&]<class T> {
    auto* to = static_cast<T*>(out.data());
    const auto* from = static_cast<const T*>(gate_up.data());
    constexpr int N = pack_size<T>;
    if (rows_aligned<T, N>(width, to, from))
      swiglu_kernel<T, N><<<grid_of(rows, width, N), threads, 0, on>>>(to, from, width);
    else
      swiglu_kernel<T, 1><<<grid_of(rows, width, 1), threads, 0, on>>>(to, from, width);
  });
  SO_CUDA_LAUNCHED(op);
}

void CudaOps::swiglu_grad(Stream& stream, Tensor dgate_up, Tensor dout, Tensor gate_up, Tensor activated) {
  const char* op = "swiglu_grad";
  SO_CHECK(dout.rank() == 2, "{}: dout is {}", op, shape_string(dout.shape()));
  expect_compute_dtype(op, "dout", dout.dtype());
  const std::int64_t rows = dout.dim(0), width = dout.dim(1);
  expect_tensor(op, "dout", dout, dout.dtype(), {rows, width});
  expect_tensor(op, "gate_up", gate_up, dout.dtype(), {rows, 2 * width});
  expect_tensor(op, "dgate_up", dgate_up, dout.dtype(), {rows, 2 * width});
  if (activated) expect_tensor(op, "activated", activated, dout.dtype(), {rows, width});
  const cudaStream_t on = enter(stream);
  if (dout.size() == 0) return;
  with_type(dout.dtype(), [&]<class T> {
    auto *dx = static_cast<T*>(dgate_up.data()), *again = static_cast<T*>(activated.data());
    const auto *dy = static_cast<const T*>(dout.data()), *x = static_cast<const T*>(gate_up.data());
    constexpr int N = pack_size<T>;
    if (rows_aligned<T, N>(width, dx, again, dy, x))
      swiglu_grad_kernel<T, N><<<grid_of(rows, width, N), threads, 0, on>>>(dx, again, dy, x, width);
    else
      swiglu_grad_kernel<T, 1><<<grid_of(rows, width, 1), threads, 0, on>>>(dx, again, dy, x, width);
  });
  SO_CUDA_LAUNCHED(op);
}

}  // namespace so
