// The gate of a whole row, by the sigmoid of its product with a weight, and its gradient: memory-bound, each byte read
// and written once. A product of one column would leave a matrix unit idle, and its gradients would be two more passes.
#include <algorithm>

#include "device/cuda/kernel.h"
#include "ops/cuda/column_sums.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/sigmoid.h"
#include "ops/expert_checks.h"

namespace so {
namespace {

using namespace kernel;

constexpr int gate_rows = 8;       // of a block, a warp each
constexpr int grad_threads = 128;  // N columns each
constexpr int ahead = 4;           // loads on their way at a time

template <class T, int N>
__global__ void __launch_bounds__(gate_rows* warp)
    row_gate_kernel(float* gates, const T* x, const T* weight, std::int64_t rows, std::int64_t width) {
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * gate_rows + threadIdx.x / warp;
  if (n >= rows) return;
  const int lane = threadIdx.x % warp;
  const T* row = x + n * width;
  float sum = 0;
  for (std::int64_t begin = lane * N; begin < width; begin += ahead * warp * N) {
    Words<T, N> words[ahead];
#pragma unroll
    for (int k = 0; k < ahead; ++k)
      if (const std::int64_t i = begin + k * warp * N; i < width) words[k] = fetch<N>(row + i);
#pragma unroll
    for (int k = 0; k < ahead; ++k)
      if (const std::int64_t i = begin + k * warp * N; i < width) {
        float v[N], w[N];
        widen<T>(v, words[k]);
        load<N>(w, weight + i);
#pragma unroll
        for (int j = 0; j < N; ++j) sum = fmaf(v[j], w[j], sum);
      }
  }
  sum = warp_sum(sum);
  if (lane > 0) return;
  float gate, complement;
  sigmoid<float>(sum, gate, complement);
  gates[n] = gate;
}

template <class T>
struct GradArguments {
  T* dx;
  float* partial;  // f32 [pieces, width], or null: dweight is not wanted
  const T *x, *weight;
  const float *gates, *dgates;
  std::int64_t rows, width, rows_per_piece;
};

// A thread does N columns of a piece's rows, and leaves their part of dweight in `partial`. Grid: x over pieces, y over
// columns.
template <class T, int N>
__global__ void __launch_bounds__(grad_threads) row_gate_grad_kernel(GradArguments<T> a) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.y) * grad_threads + threadIdx.x) * N;
  if (i >= a.width) return;
  const std::int64_t begin = blockIdx.x * a.rows_per_piece, end = min(a.rows, begin + a.rows_per_piece);
  float w[N], sum[N] = {};
  load<N>(w, a.weight + i);
  for (std::int64_t n = begin; n < end; n += ahead) {
    Words<T, N> in_x[ahead], in_dx[ahead];
    float slope[ahead];
#pragma unroll
    for (int k = 0; k < ahead; ++k)
      if (n + k < end) {
        in_dx[k] = fetch<N>(a.dx + (n + k) * a.width + i);
        if (a.partial) in_x[k] = fetch<N>(a.x + (n + k) * a.width + i);
        const float gate = a.gates[n + k];
        slope[k] = a.dgates[n + k] * gate * (1.0f - gate);
      }
#pragma unroll
    for (int k = 0; k < ahead; ++k)
      if (n + k < end) {
        float v[N];
        widen<T>(v, in_dx[k]);
#pragma unroll
        for (int j = 0; j < N; ++j) v[j] = fmaf(slope[k], w[j], v[j]);
        store<N>(a.dx + (n + k) * a.width + i, v);
        if (!a.partial) continue;
        widen<T>(v, in_x[k]);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] = fmaf(slope[k], v[j], sum[j]);
      }
  }
  if (a.partial) store<N>(a.partial + blockIdx.x * a.width + i, sum);
}

// Calls f.operator()<N>() with 16-byte accesses if rows and pointers allow them, else single elements.
template <class T, class F, class... Pointers>
void with_row_packs(std::int64_t width, F&& f, const Pointers*... pointers) {
  if (rows_aligned<T, pack_size<T>>(width, pointers...))
    f.template operator()<pack_size<T>>();
  else
    f.template operator()<1>();
}

}  // namespace

void CudaOps::row_gate(Stream& stream, Tensor gates, Tensor x, Tensor weight) {
  const char* op = "row_gate";
  expect_row_gate(op, gates, x, weight);
  const cudaStream_t on = enter(stream);
  const std::int64_t rows = x.dim(0), width = x.dim(1);
  if (rows == 0) return;
  with_type(x.dtype(), [&]<class T> {
    const auto* in = static_cast<const T*>(x.data());
    const auto* w = static_cast<const T*>(weight.data());
    with_row_packs<T>(
        width,
        [&]<int N> {
          row_gate_kernel<T, N>
              <<<blocks_for(rows, gate_rows), gate_rows * warp, 0, on>>>(gates.as<float>(), in, w, rows, width);
        },
        in, w);
  });
  SO_CUDA_LAUNCHED(op);
}

void CudaOps::row_gate_grad(Stream& stream, const RowGateGrad& g) {
  const char* op = "row_gate_grad";
  expect_row_gate_grad(op, g);
  const cudaStream_t on = enter(stream);
  const std::int64_t rows = g.x.dim(0), width = g.x.dim(1);
  if (width == 0) return;
  // Pieces for every multiprocessor, but no more: what they leave of dweight is read again.
  constexpr std::int64_t most_pieces = 512, fewest_rows = 16;
  const std::int64_t rows_per_piece = std::max(fewest_rows, (rows + most_pieces - 1) / most_pieces),
                     pieces = (rows + rows_per_piece - 1) / rows_per_piece;
  float* partial = g.dweight ? scratch<float>(static_cast<std::size_t>(pieces * width)) : nullptr;
  if (rows > 0) {
    with_type(g.x.dtype(), [&]<class T> {
      const GradArguments<T> a{.dx = static_cast<T*>(g.dx.data()),
                               .partial = partial,
                               .x = static_cast<const T*>(g.x.data()),
                               .weight = static_cast<const T*>(g.weight.data()),
                               .gates = g.gates.as<float>(),
                               .dgates = g.dgates.as<float>(),
                               .rows = rows,
                               .width = width,
                               .rows_per_piece = rows_per_piece};
      with_row_packs<T>(
          width,
          [&]<int N> {
            const dim3 grid(blocks_for(pieces, 1), blocks_for(width, std::int64_t{grad_threads} * N));
            row_gate_grad_kernel<T, N><<<grid, grad_threads, 0, on>>>(a);
          },
          a.dx, a.x, a.weight);
    });
    SO_CUDA_LAUNCHED(op);
  }
  if (g.dweight) finish_column_sums(on, g.dweight, partial, pieces, width, g.dweight_mode);
}

}  // namespace so
