// The activations of an MLP and their gradients, gated [Shazeer 2020], SwiGLU and GEGLU, and the square of ReLU:
// memory-bound, each byte read and written once.
#include "device/cuda/kernel.h"
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/sigmoid.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 256;

// Both activations are x sigmoid(z): z is x for SiLU, and 2 sqrt(2/pi) (x + 0.044715 x^3) for GELU by tanh, since
// (1 + tanh(u)) / 2 = sigmoid(2u). Here are z and dz/dx.
constexpr float gelu_linear = 1.5957691216057308f, gelu_cubic = gelu_linear * 0.044715f;

template <MlpActivation ACT>
__device__ inline float logit(float x) {
  return ACT == MlpActivation::silu ? x : x * (x * x * gelu_cubic + gelu_linear);
}
template <MlpActivation ACT>
__device__ inline float logit_slope(float x) {
  return ACT == MlpActivation::silu ? 1.0f : x * x * (3 * gelu_cubic) + gelu_linear;
}

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
  for (int j = 0; j < N; ++j) {
    float s, complement;
    sigmoid<T>(logit<ACT>(gate[j]), s, complement);
    up[j] *= gate[j] * s;
  }
  store<N>(out + row * width + i, up);
}

// act'(g) = s + g s (1 - s) z', s = sigmoid(z). Where s or 1 - s is 0, z' may be too large for fp32: the product is 0
// then. Outputs may lie on inputs: an element's inputs are read by the thread that writes its outputs, before it does.
template <class T, int N, MlpActivation ACT>
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
    sigmoid<T>(logit<ACT>(gate[j]), s, complement);
    const float active = gate[j] * s;
    if constexpr (ACT != MlpActivation::silu)
      complement = s * complement == 0 ? 0.0f : complement * logit_slope<ACT>(gate[j]);
    again[j] = active * up[j];
    gate[j] = dy[j] * up[j] * (s + active * complement);
    up[j] = dy[j] * active;
  }
  store<N>(dgate_up + at, gate);
  store<N>(dgate_up + at + width, up);
  if (activated) store<N>(activated + row * width + i, again);
}

// NaN stays NaN, since no comparison with it is true.
__device__ inline float relu(float x) { return x < 0 ? 0.0f : x; }

template <class T, int N>
__global__ void __launch_bounds__(threads) relu_squared_kernel(T* out, const T* up, std::int64_t width) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.y) * threads + threadIdx.x) * N, row = blockIdx.x;
  if (i >= width) return;
  float x[N];
  load<N>(x, up + row * width + i);
#pragma unroll
  for (int j = 0; j < N; ++j) x[j] = relu(x[j]) * relu(x[j]);
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
  for (int j = 0; j < N; ++j) {
    x[j] = relu(x[j]);
    dy[j] *= x[j] + x[j];
    x[j] *= x[j];
  }
  store<N>(dup + at, dy);
  if (activated) store<N>(activated + at, x);
}

dim3 grid_of(std::int64_t rows, std::int64_t width, int pack) {
  return dim3(blocks_for(rows, 1), blocks_for(width, static_cast<std::int64_t>(threads) * pack));
}

// Calls f.operator()<ACT>().
template <class F>
void with_activation(MlpActivation activation, F&& f) {
  switch (activation) {
    case MlpActivation::silu:
      return f.template operator()<MlpActivation::silu>();
    case MlpActivation::gelu_tanh:
      return f.template operator()<MlpActivation::gelu_tanh>();
    case MlpActivation::relu_squared:
      return f.template operator()<MlpActivation::relu_squared>();
  }
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

void CudaOps::swiglu(Stream& stream, Tensor out, Tensor gate_up, MlpActivation activation) {
  const char* op = "swiglu";
  SO_CHECK(out.rank() == 2, "{}: out is {}", op, shape_string(out.shape()));
  expect_compute_dtype(op, "out", out.dtype());
  const std::int64_t rows = out.dim(0), width = out.dim(1);
  expect_tensor(op, "out", out, out.dtype(), {rows, width});
  expect_tensor(op, "gate_up", gate_up, out.dtype(), {rows, inputs_of(activation) * width});
  const cudaStream_t on = enter(stream);
  if (out.size() == 0) return;
  with_type(out.dtype(), [&]<class T> {
    auto* to = static_cast<T*>(out.data());
    const auto* from = static_cast<const T*>(gate_up.data());
    constexpr int N = pack_size<T>;
    with_activation(activation, [&]<MlpActivation ACT> {
      if (rows_aligned<T, N>(width, to, from))
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
