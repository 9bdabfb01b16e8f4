// A gate by SiLU, then an RMS norm of each head with a weight for each column: memory-bound, each byte read and written
// once. A warp does a head: lane l holds the packs l, l + 32, ... of N elements, PACKS of them.
#include <algorithm>

#include "device/cuda/kernel.h"
#include "ops/cuda/column_sums.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/heads.h"
#include "ops/cuda/sigmoid.h"
#include "ops/delta_checks.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 128, warps = threads / warp;
constexpr int grad_blocks = 8;  // a multiprocessor's, in the gradient

template <class T, int N, int PACKS>
__global__ void __launch_bounds__(threads)
    gate_then_norm_kernel(Span<T> out, Span<const T> x, Span<const T> gate, const T* weight, float* inv_rms,
                          float epsilon, float weight_offset, std::int64_t items, int heads, int head_dim) {
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) / warp;
  if (item >= items) return;  // with its warp
  const int first = static_cast<int>(threadIdx.x) % warp * N;
  const std::int64_t row = item / heads;
  const int head = static_cast<int>(item - row * heads);
  const T *from = x.head(row, head), *gates = gate.head(row, head);
  float y[PACKS][N] = {}, squares = 0;
#pragma unroll
  for (int p = 0; p < PACKS; ++p)
    if (const int i = first + p * warp * N; i < head_dim) {
      float z[N];
      load<N>(y[p], from + i);
      load<N>(z, gates + i);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        float s, complement;
        sigmoid<T>(z[j], s, complement);
        y[p][j] *= z[j] * s;
        squares += y[p][j] * y[p][j];
      }
    }
  const float r = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(head_dim) + epsilon);
  if (first == 0) inv_rms[item] = r;
  T* to = out.head(row, head);
#pragma unroll
  for (int p = 0; p < PACKS; ++p)
    if (const int i = first + p * warp * N; i < head_dim) {
      float w[N];
      load<N>(w, weight + static_cast<std::int64_t>(head) * head_dim + i);
#pragma unroll
      for (int j = 0; j < N; ++j) y[p][j] = y[p][j] * r * (weight_offset + w[j]);
      store<N>(to + i, y[p]);
    }
}

template <class T>
struct GateThenNormSpans {
  Span<T> dx, dgate, normed;
  Span<const T> dout, x, gate;
  const T* weight;
  const float* inv_rms;
  float weight_offset;
  std::int64_t rows;
  int heads, head_dim;
};

// With a = silu(z), y = x a, u = y r and out = u w:
//   dw = sum over rows of dout u,  dy = r (g - u mean(g u)) for g = dout w,  dx = dy a,  dz = dy x silu'(z).
// Grid: x over blocks whose warps take rows in turn, y over heads. A block's part of dw is in row x of `partial`
// [blocks, heads * head_dim]. Outputs may lie on inputs: a lane has read all that it has of a head before it writes.
template <class T, int N, int PACKS>
__global__ void __launch_bounds__(threads) gate_then_norm_grad_kernel(GateThenNormSpans<T> a, float* partial) {
  const int number = static_cast<int>(threadIdx.x) / warp, first = static_cast<int>(threadIdx.x) % warp * N;
  const int head = static_cast<int>(blockIdx.y);
  const T* weight = a.weight + static_cast<std::int64_t>(head) * a.head_dim;
  float dweight[PACKS][N] = {};
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * warps + number; row < a.rows;
       row += static_cast<std::int64_t>(gridDim.x) * warps) {
    const T *from = a.x.head(row, head), *gates = a.gate.head(row, head), *douts = a.dout.head(row, head);
    Words<T, N> in_x[PACKS] = {}, in_z[PACKS] = {}, in_dy[PACKS] = {};
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
      if (const int i = first + p * warp * N; i < a.head_dim) {
        in_x[p] = fetch<N>(from + i);
        in_z[p] = fetch<N>(gates + i);
        in_dy[p] = fetch<N>(douts + i);
      }
    const float r = a.inv_rms[row * a.heads + head];
    float g[PACKS][N], dot = 0;
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
      if (const int i = first + p * warp * N; i < a.head_dim) {
        float v[N], z[N], dy[N], w[N], again[N];
        widen<T>(v, in_x[p]);
        widen<T>(z, in_z[p]);
        widen<T>(dy, in_dy[p]);
        load<N>(w, weight + i);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          float s, complement;
          sigmoid<T>(z[j], s, complement);
          const float y = v[j] * (z[j] * s), u = y * r, scale = a.weight_offset + w[j];
          dweight[p][j] += dy[j] * u;
          g[p][j] = dy[j] * scale;
          dot += g[p][j] * y;
          again[j] = u * scale;
        }
        if (a.normed.data) store<N>(a.normed.head(row, head) + i, again);
      }
    const float k = warp_sum(dot) * r / static_cast<float>(a.head_dim) * r;  // r mean(g u)
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
      if (const int i = first + p * warp * N; i < a.head_dim) {
        float v[N], z[N];
        widen<T>(v, in_x[p]);
        widen<T>(z, in_z[p]);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          float s, complement;
          sigmoid<T>(z[j], s, complement);
          const float silu = z[j] * s, dy = r * (g[p][j] - v[j] * silu * k), x = v[j];
          v[j] = dy * silu;
          z[j] = dy * x * (s + silu * complement);
        }
        store<N>(a.dx.head(row, head) + i, v);
        store<N>(a.dgate.head(row, head) + i, z);
      }
  }
  __shared__ float sums[warps][PACKS * N * warp];
#pragma unroll
  for (int p = 0; p < PACKS; ++p)
#pragma unroll
    for (int j = 0; j < N; ++j) sums[number][first + p * warp * N + j] = dweight[p][j];
  __syncthreads();
  float* to = partial + (static_cast<std::int64_t>(blockIdx.x) * a.heads + head) * a.head_dim;
  for (int d = static_cast<int>(threadIdx.x); d < a.head_dim; d += threads) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < warps; ++i) sum += sums[i][d];
    to[d] = sum;
  }
}

// Calls f.operator()<N, PACKS>() for heads of head_dim: 16-byte accesses if these allow them, else single elements.
template <class T, class F>
void with_head_packs(const char* op, const Tensor& weight, std::initializer_list<Heads> all, F&& f) {
  constexpr int N = pack_size<T>;
  const std::int64_t head_dim = all.begin()->head_dim;
  const bool aligned =
      rows_aligned<T, N>(head_dim, weight.data()) && std::all_of(all.begin(), all.end(), heads_aligned<T, N>);
  if (aligned && head_dim <= N * warp)
    f.template operator()<N, 1>();
  else if (aligned && head_dim <= 2 * N * warp)
    f.template operator()<N, 2>();
  else if (aligned && head_dim <= 4 * N * warp)
    f.template operator()<N, 4>();
  else if (head_dim <= 8 * warp)
    f.template operator()<1, 8>();
  else if (head_dim <= 32 * warp)
    f.template operator()<1, 32>();
  else
    fail("{}: groups of {} elements are longer than the CUDA backend takes (1024)", op, head_dim);
}

}  // namespace

void CudaOps::gate_then_norm(Stream& stream, Heads out, Heads x, Heads gate, HeadNorm norm) {
  const char* op = "gate_then_norm";
  expect_gate_then_norm(op, out, x, gate, norm);
  const cudaStream_t on = enter(stream);
  const std::int64_t items = x.rows.dim(0) * x.heads;
  if (items == 0) return;
  with_type(x.rows.dtype(), [&]<class T> {
    with_head_packs<T>(op, norm.weight, {x, out, gate}, [&]<int N, int PACKS> {
      gate_then_norm_kernel<T, N, PACKS><<<blocks_for(items, warps), threads, 0, on>>>(
          span_of<T>(out), span_of<const T>(x), span_of<const T>(gate), static_cast<const T*>(norm.weight.data()),
          norm.inv_rms.as<float>(), norm.epsilon, norm.weight_offset, items, static_cast<int>(x.heads),
          static_cast<int>(x.head_dim));
    });
  });
  SO_CUDA_LAUNCHED(op);
}

void CudaOps::gate_then_norm_grad(Stream& stream, const GateThenNormGrad& g) {
  const char* op = "gate_then_norm_grad";
  expect_gate_then_norm_grad(op, g);
  const cudaStream_t on = enter(stream);
  const std::int64_t rows = g.x.rows.dim(0), columns = g.x.heads * g.x.head_dim;
  // Few blocks of many rows, since each leaves a row of dweight's parts.
  const std::int64_t at_once =
      std::int64_t{grad_blocks} * properties_.multiprocessors / std::max<std::int64_t>(g.x.heads, 1);
  const std::int64_t blocks = std::min((rows + warps - 1) / warps, std::max<std::int64_t>(at_once, 1));
  auto* partial = scratch<float>(static_cast<std::size_t>(blocks * columns));
  if (rows > 0 && columns > 0) {
    with_type(g.x.rows.dtype(), [&]<class T> {
      const GateThenNormSpans<T> spans{span_of<T>(g.dx),
                                       span_of<T>(g.dgate),
                                       span_of<T>(g.normed),
                                       span_of<const T>(g.dout),
                                       span_of<const T>(g.x),
                                       span_of<const T>(g.gate),
                                       static_cast<const T*>(g.norm.weight.data()),
                                       g.norm.inv_rms.as<float>(),
                                       g.norm.weight_offset,
                                       rows,
                                       static_cast<int>(g.x.heads),
                                       static_cast<int>(g.x.head_dim)};
      const dim3 grid(blocks_for(blocks, 1), blocks_for(g.x.heads, 1));
      with_head_packs<T>(op, g.norm.weight, {g.x, g.dx, g.dgate, g.normed, g.dout, g.gate}, [&]<int N, int PACKS> {
        gate_then_norm_grad_kernel<T, N, PACKS><<<grid, threads, 0, on>>>(spans, partial);
      });
    });
    SO_CUDA_LAUNCHED(op);
  }
  finish_column_sums(on, g.dweight, partial, blocks, columns, g.dweight_mode);
}

}  // namespace so
