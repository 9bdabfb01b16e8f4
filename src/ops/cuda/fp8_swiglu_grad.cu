// The gradient of an MLP's activation, which leaves codes in FP8 by rows and by columns, and of the activated by
// columns: memory-bound, each byte read and written once.
#include "device/cuda/kernel.h"
#include "ops/cuda/activation.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/fp8_codes.h"
#include "ops/fp8_checks.h"

namespace so {
namespace {

using namespace kernel;
using fp8_square::own, fp8_square::side, fp8_square::threads;

template <class T>
struct Fp8SwigluGradArguments {
  Fp8Target rows, columns, activated;
  T* dgate_up;  // null: not wanted
  const T *dout, *gate_up;
  std::int64_t n, width;  // of dout
};

// What a block makes of its square waits in shared memory until its turn to be rounded, [kind][row][thread]; the first
// kind waits in registers.
template <class T, bool GATED>
constexpr std::size_t fp8_waiting_bytes() {
  return (GATED ? 2 : 1) * own * threads * sizeof(Words<T, own>);
}

template <class T, MlpActivation ACT>
__global__ void __launch_bounds__(threads, sizeof(T) == 2 ? 2 : 1) fp8_swiglu_grad_kernel(Fp8SwigluGradArguments<T> a) {
  constexpr bool gated = ACT != MlpActivation::relu_squared;
  constexpr int ahead = 4;  // rows that are fetched together
  using Row = Words<T, own>;
  __shared__ fp8_square::Shared shared;
  extern __shared__ __align__(32) unsigned char memory[];
  Row* const again = reinterpret_cast<Row*>(memory) + threadIdx.x;  // of row r at [r * threads]
  Row* const dup = again + own * threads;
  const std::int64_t column = std::int64_t{blockIdx.x} * side + threadIdx.x % fp8_square::across * own,
                     row = std::int64_t{blockIdx.y} * side + threadIdx.x / fp8_square::across * own,
                     pitch = gated ? 2 * a.width : a.width;

  Row words[own];
#pragma unroll
  for (int first = 0; first < own; first += ahead) {
    Row gates[ahead] = {}, ups[ahead] = {}, douts[ahead] = {};
#pragma unroll
    for (int r = 0; r < ahead; ++r)
      if (const std::int64_t n = row + first + r; n < a.n) {
        if constexpr (gated) gates[r] = fetch<own>(a.gate_up + n * pitch + column);
        ups[r] = fetch<own>(a.gate_up + n * pitch + (gated ? a.width : 0) + column);
        douts[r] = fetch<own>(a.dout + n * a.width + column);
      }
#pragma unroll
    for (int r = 0; r < ahead; ++r) {
      float gate[own], up[own], dy[own];
      widen<T>(up, ups[r]);
      widen<T>(dy, douts[r]);
      if constexpr (gated) {
        widen<T>(gate, gates[r]);
#pragma unroll
        for (int i = 0; i < own; ++i) gated_grad<T, ACT>(gate[i], up[i], dy[i]);
        words[first + r] = narrow<T>(gate);
        dup[(first + r) * threads] = narrow<T>(up);
      } else {
#pragma unroll
        for (int i = 0; i < own; ++i) relu_squared_grad(up[i], dy[i]);
        words[first + r] = narrow<T>(up);
      }
      again[(first + r) * threads] = narrow<T>(dy);
      // An element's inputs were read by this thread, so its outputs may lie on them.
      if (const std::int64_t n = row + first + r; a.dgate_up && n < a.n) {
        store_words(a.dgate_up + n * pitch + column, words[first + r].at);
        if constexpr (gated) store_words(a.dgate_up + n * pitch + a.width + column, dup[(first + r) * threads].at);
      }
    }
  }

  // A thread reads what it wrote itself.
  const auto round_gradient = [&](std::int64_t block_of_columns) {
    if (a.columns.codes)
      fp8_square::round<T, false, true>(shared, a.rows, a.columns, words, blockIdx.y, block_of_columns);
    else
      fp8_square::round<T, false, false>(shared, a.rows, a.columns, words, blockIdx.y, block_of_columns);
  };
  round_gradient(blockIdx.x);
  if constexpr (gated) {
#pragma unroll
    for (int r = 0; r < own; ++r) words[r] = dup[r * threads];
    round_gradient(a.width / side + blockIdx.x);
  }
  if (!a.activated.codes) return;
#pragma unroll
  for (int r = 0; r < own; ++r) words[r] = again[r * threads];
  fp8_square::round<T, true, true>(shared, Fp8Target{}, a.activated, words, blockIdx.y, blockIdx.x);
}

}  // namespace

void CudaOps::fp8_swiglu_grad(Stream& stream, const Fp8SwigluGrad& g) {
  const char* op = "fp8_swiglu_grad";
  expect_fp8_swiglu_grad(g);
  const cudaStream_t on = enter(stream);
  if (g.dout.size() == 0) return;
  const std::int64_t n = g.dout.dim(0), width = g.dout.dim(1), inputs = g.gate_up.dim(1);
  with_type(g.dout.dtype(), [&]<class T> {
    const Fp8SwigluGradArguments<T> arguments{target_of(g.rows, n),
                                              target_of(g.columns, inputs),
                                              target_of(g.activated, width),
                                              static_cast<T*>(g.dgate_up.data()),
                                              static_cast<const T*>(g.dout.data()),
                                              static_cast<const T*>(g.gate_up.data()),
                                              n,
                                              width};
    SO_CHECK((rows_aligned<T, pack_size<T>>(width, arguments.dgate_up, arguments.dout, arguments.gate_up)),
             "{}: rows that do not begin at 16 bytes", op);
    with_activation(g.activation, [&]<MlpActivation ACT> {
      constexpr std::size_t bytes = fp8_waiting_bytes<T, ACT != MlpActivation::relu_squared>();
      const auto kernel = fp8_swiglu_grad_kernel<T, ACT>;
      SO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
      kernel<<<dim3(blocks_for(width, side), blocks_for(n, side)), threads, bytes, on>>>(arguments);
    });
  });
  SO_CUDA_LAUNCHED(op);
}

}  // namespace so
