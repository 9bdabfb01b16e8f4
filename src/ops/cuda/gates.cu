// Gates on heads: by a sigmoid alone, or by SiLU after an RMS norm of each head, and their gradients: memory-bound,
// each byte read and written once.
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

// --- sigmoid_gate ---

constexpr int gate_threads = 256;

// Grid: x over rows, y over pieces of a row's `width` elements, which are heads of head_dim, a multiple of N.
template <class T, int N>
__global__ void __launch_bounds__(gate_threads)
    sigmoid_gate_kernel(Span<T> out, Span<const T> x, Span<const T> gate, int width, int head_dim) {
  const int i = (static_cast<int>(blockIdx.y) * gate_threads + threadIdx.x) * N;
  if (i >= width) return;
  const int head = i / head_dim, at = i - head * head_dim;
  float v[N], g[N];
  load<N>(v, x.head(blockIdx.x, head) + at);
  load<N>(g, gate.head(blockIdx.x, head) + at);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    float s, complement;
    sigmoid<T>(g[j], s, complement);
    v[j] *= s;
  }
  store<N>(out.head(blockIdx.x, head) + at, v);
}

template <class T>
struct SigmoidGateGradSpans {
  Span<T> dx, dgate, gated;
  Span<const T> dout, x, gate;
};

// Outputs may lie on inputs: an element's inputs are read by the thread that writes its outputs, before it does.
template <class T, int N>
__global__ void __launch_bounds__(gate_threads)
    sigmoid_gate_grad_kernel(SigmoidGateGradSpans<T> a, int width, int head_dim) {
  const int i = (static_cast<int>(blockIdx.y) * gate_threads + threadIdx.x) * N;
  if (i >= width) return;
  const std::int64_t row = blockIdx.x;
  const int head = i / head_dim, at = i - head * head_dim;
  float v[N], g[N], dy[N];
  load<N>(v, a.x.head(row, head) + at);
  load<N>(g, a.gate.head(row, head) + at);
  load<N>(dy, a.dout.head(row, head) + at);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    float s, complement;
    sigmoid<T>(g[j], s, complement);
    v[j] *= s;
    g[j] = dy[j] * v[j] * complement;
    dy[j] *= s;
  }
  store<N>(a.dx.head(row, head) + at, dy);
  store<N>(a.dgate.head(row, head) + at, g);
  if (a.gated.data) store<N>(a.gated.head(row, head) + at, v);
}

// Calls f.operator()<N>(grid, width of a row) with 16-byte accesses if all of these allow them, else single elements.
template <class T, class F>
void with_gate_packs(const char* op, std::initializer_list<Heads> all, F&& f) {
  const Heads& first = *all.begin();
  const std::int64_t rows = first.rows.dim(0), width = first.heads * first.head_dim;
  SO_CHECK(width < std::int64_t{1} << 30, "{}: {} elements a row", op, width);
  const auto grid = [&](int pack) {
    return dim3(blocks_for(rows, 1), blocks_for(width, std::int64_t{gate_threads} * pack));
  };
  constexpr int N = pack_size<T>;
  if (first.head_dim % N == 0 && std::all_of(all.begin(), all.end(), heads_aligned<T, N>))
    f.template operator()<N>(grid(N), static_cast<int>(width));
  else
    f.template operator()<1>(grid(1), static_cast<int>(width));
}

// --- gated_norm ---

constexpr int norm_threads = 128, norm_blocks = 8;  // a multiprocessor's, in the gradient

// A group of G lanes does a head: lane l holds the packs l, l + G, ... of N elements, PACKS of them.
template <class T, int N, int G, int PACKS>
__global__ void __launch_bounds__(norm_threads)
    gated_norm_kernel(Span<T> out, Span<const T> x, Span<const T> gate, const T* weight, float* inv_rms, float epsilon,
                      float weight_offset, std::int64_t items, int heads, int head_dim) {
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * norm_threads + threadIdx.x) / G;
  const int first = threadIdx.x % G * N;
  const bool mine = item < items;  // every lane takes part in sums
  const std::int64_t row = mine ? item / heads : 0;
  const int head = mine ? static_cast<int>(item - row * heads) : 0;
  const T *from = x.head(row, head), *gates = gate.head(row, head);
  Words<T, N> values[PACKS] = {}, z[PACKS] = {};
#pragma unroll
  for (int p = 0; p < PACKS; ++p)
    if (const int i = first + p * G * N; mine && i < head_dim) {
      values[p] = fetch<N>(from + i);
      z[p] = fetch<N>(gates + i);
    }
  float squares = 0;
#pragma unroll
  for (int p = 0; p < PACKS; ++p) {
    float v[N];
    widen<T>(v, values[p]);
#pragma unroll
    for (int j = 0; j < N; ++j) squares += v[j] * v[j];
  }
  const float r = 1.0f / sqrtf(group_sum<G>(squares) / static_cast<float>(head_dim) + epsilon);
  if (!mine) return;
  if (first == 0) inv_rms[item] = r;
  T* to = out.head(row, head);
#pragma unroll
  for (int p = 0; p < PACKS; ++p)
    if (const int i = first + p * G * N; i < head_dim) {
      float v[N], g[N], w[N];
      widen<T>(v, values[p]);
      widen<T>(g, z[p]);
      load<N>(w, weight + i);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        float s, complement;
        sigmoid<T>(g[j], s, complement);
        v[j] = v[j] * r * (weight_offset + w[j]) * (g[j] * s);
      }
      store<N>(to + i, v);
    }
}

template <class T>
struct GatedNormGradSpans {
  Span<T> dx, dgate, normed;
  Span<const T> dout, x, gate;
  const T* weight;
  const float* inv_rms;
  float weight_offset;
  std::int64_t items;
  int heads, head_dim;
};

// With u = x r, y = u w and the gate a = silu(z):
//   dz = dout y silu'(z),  dw = sum over rows of dout a u,  dx = r (g - u mean(g u)) for g = dout a w.
// Groups take heads in turn; a block's part of dw is a row of `partial`. Outputs may lie on inputs: a lane has read all
// that it has of a head before it writes.
template <class T, int N, int G, int PACKS>
__global__ void __launch_bounds__(norm_threads) gated_norm_grad_kernel(GatedNormGradSpans<T> a, float* partial) {
  constexpr int groups = norm_threads / G;
  const int group = threadIdx.x / G, first = threadIdx.x % G * N;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * groups;
  float dweight[PACKS][N] = {};
  // Every lane of a warp goes round as often as its first, so that all take part in sums.
  std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * groups + group;
  for (std::int64_t leader = item - group % (warp / G); leader < a.items; leader += step, item += step) {
    const bool mine = item < a.items;
    const std::int64_t row = mine ? item / a.heads : 0;
    const int head = mine ? static_cast<int>(item - row * a.heads) : 0;
    const T *from = a.x.head(row, head), *gates = a.gate.head(row, head), *douts = a.dout.head(row, head);
    Words<T, N> in_x[PACKS] = {}, in_z[PACKS] = {}, in_dy[PACKS] = {};
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
      if (const int i = first + p * G * N; mine && i < a.head_dim) {
        in_x[p] = fetch<N>(from + i);
        in_z[p] = fetch<N>(gates + i);
        in_dy[p] = fetch<N>(douts + i);
      }
    const float r = mine ? a.inv_rms[item] : 0.0f;
    float g[PACKS][N], dot = 0;
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
      if (const int i = first + p * G * N; mine && i < a.head_dim) {
        float v[N], z[N], dy[N], w[N];
        widen<T>(v, in_x[p]);
        widen<T>(z, in_z[p]);
        widen<T>(dy, in_dy[p]);
        load<N>(w, a.weight + i);
        float again[N];
#pragma unroll
        for (int j = 0; j < N; ++j) {
          float s, complement;
          sigmoid<T>(z[j], s, complement);
          const float silu = z[j] * s, u = v[j] * r, scale = a.weight_offset + w[j], y = u * scale, da = dy[j] * silu;
          dweight[p][j] += da * u;
          g[p][j] = da * scale;
          dot += g[p][j] * v[j];
          z[j] = dy[j] * y * (s + silu * complement);
          again[j] = y * silu;
        }
        store<N>(a.dgate.head(row, head) + i, z);
        if (a.normed.data) store<N>(a.normed.head(row, head) + i, again);
      }
    const float k = group_sum<G>(dot) * r / static_cast<float>(a.head_dim) * r;  // r mean(g u)
    if (!mine) continue;
    T* to = a.dx.head(row, head);
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
      if (const int i = first + p * G * N; i < a.head_dim) {
        float v[N];
        widen<T>(v, in_x[p]);
#pragma unroll
        for (int j = 0; j < N; ++j) v[j] = r * (g[p][j] - v[j] * k);
        store<N>(to + i, v);
      }
  }
  __shared__ float sums[groups][PACKS * N * G];
#pragma unroll
  for (int p = 0; p < PACKS; ++p)
#pragma unroll
    for (int j = 0; j < N; ++j) sums[group][first + p * G * N + j] = dweight[p][j];
  __syncthreads();
  for (int d = threadIdx.x; d < a.head_dim; d += norm_threads) {
    float sum = 0;
    for (int i = 0; i < groups; ++i) sum += sums[i][d];
    partial[static_cast<std::int64_t>(blockIdx.x) * a.head_dim + d] = sum;
  }
}

// Calls f.operator()<N, G, PACKS>() for heads of head_dim: 16-byte accesses if they are aligned, else single elements.
template <class T, class F>
void with_norm_group(const char* op, std::int64_t head_dim, bool aligned, F&& f) {
  constexpr int N = pack_size<T>;
  if (aligned && head_dim <= N * 8)
    f.template operator()<N, 8, 1>();
  else if (aligned && head_dim <= N * 16)
    f.template operator()<N, 16, 1>();
  else if (aligned && head_dim <= N * 32)
    f.template operator()<N, 32, 1>();
  else if (aligned && head_dim <= N * 64)
    f.template operator()<N, 32, 2>();
  else if (head_dim <= 256)
    f.template operator()<1, 32, 8>();
  else if (head_dim <= 1024)
    f.template operator()<1, 32, 32>();
  else
    fail("{}: heads of {} elements are longer than the CUDA backend takes (1024)", op, head_dim);
}

// Whether these heads can be accessed N elements at a time, and the weight with them.
template <class T, int N>
bool norm_aligned(const Tensor& weight, std::initializer_list<Heads> all) {
  return rows_aligned<T, N>(weight.size(), weight.data()) && std::all_of(all.begin(), all.end(), heads_aligned<T, N>);
}

}  // namespace

void CudaOps::sigmoid_gate(Stream& stream, Heads out, Heads x, Heads gate) {
  const char* op = "sigmoid_gate";
  expect_sigmoid_gate(op, out, x, gate);
  const cudaStream_t on = enter(stream);
  if (x.rows.dim(0) == 0) return;
  with_type(x.rows.dtype(), [&]<class T> {
    with_gate_packs<T>(op, {x, out, gate}, [&]<int N>(dim3 grid, int width) {
      sigmoid_gate_kernel<T, N><<<grid, gate_threads, 0, on>>>(
          span_of<T>(out), span_of<const T>(x), span_of<const T>(gate), width, static_cast<int>(x.head_dim));
    });
  });
  SO_CUDA_LAUNCHED(op);
}

void CudaOps::sigmoid_gate_grad(Stream& stream, const SigmoidGateGrad& g) {
  const char* op = "sigmoid_gate_grad";
  expect_sigmoid_gate_grad(op, g);
  const cudaStream_t on = enter(stream);
  if (g.x.rows.dim(0) == 0) return;
  with_type(g.x.rows.dtype(), [&]<class T> {
    const SigmoidGateGradSpans<T> spans{span_of<T>(g.dx),         span_of<T>(g.dgate),   span_of<T>(g.gated),
                                        span_of<const T>(g.dout), span_of<const T>(g.x), span_of<const T>(g.gate)};
    with_gate_packs<T>(op, {g.x, g.dx, g.dgate, g.gated, g.dout, g.gate}, [&]<int N>(dim3 grid, int width) {
      sigmoid_gate_grad_kernel<T, N><<<grid, gate_threads, 0, on>>>(spans, width, static_cast<int>(g.x.head_dim));
    });
  });
  SO_CUDA_LAUNCHED(op);
}

void CudaOps::gated_norm(Stream& stream, Heads out, Heads x, Heads gate, HeadNorm norm) {
  const char* op = "gated_norm";
  expect_gated_norm(op, out, x, gate, norm);
  const cudaStream_t on = enter(stream);
  const std::int64_t items = x.rows.dim(0) * x.heads;
  if (items == 0) return;
  with_type(x.rows.dtype(), [&]<class T> {
    const bool aligned = norm_aligned<T, pack_size<T>>(norm.weight, {out, x, gate});
    with_norm_group<T>(op, x.head_dim, aligned, [&]<int N, int G, int PACKS> {
      gated_norm_kernel<T, N, G, PACKS><<<blocks_for(items * G, norm_threads), norm_threads, 0, on>>>(
          span_of<T>(out), span_of<const T>(x), span_of<const T>(gate), static_cast<const T*>(norm.weight.data()),
          norm.inv_rms.as<float>(), norm.epsilon, norm.weight_offset, items, static_cast<int>(x.heads),
          static_cast<int>(x.head_dim));
    });
  });
  SO_CUDA_LAUNCHED(op);
}

void CudaOps::gated_norm_grad(Stream& stream, const GatedNormGrad& g) {
  const char* op = "gated_norm_grad";
  expect_gated_norm_grad(op, g);
  const cudaStream_t on = enter(stream);
  const std::int64_t items = g.x.rows.dim(0) * g.x.heads, head_dim = g.x.head_dim;
  // Few blocks of many heads, since each leaves a row of dweight's parts.
  const std::int64_t blocks = std::min<std::int64_t>(items, std::int64_t{norm_blocks} * properties_.multiprocessors);
  auto* partial = scratch<float>(static_cast<std::size_t>(blocks * head_dim));
  if (items > 0) {
    with_type(g.x.rows.dtype(), [&]<class T> {
      const GatedNormGradSpans<T> spans{span_of<T>(g.dx),
                                        span_of<T>(g.dgate),
                                        span_of<T>(g.normed),
                                        span_of<const T>(g.dout),
                                        span_of<const T>(g.x),
                                        span_of<const T>(g.gate),
                                        static_cast<const T*>(g.norm.weight.data()),
                                        g.norm.inv_rms.as<float>(),
                                        g.norm.weight_offset,
                                        items,
                                        static_cast<int>(g.x.heads),
                                        static_cast<int>(head_dim)};
      const bool aligned = norm_aligned<T, pack_size<T>>(g.norm.weight, {g.dx, g.dgate, g.normed, g.dout, g.x, g.gate});
      with_norm_group<T>(op, head_dim, aligned, [&]<int N, int G, int PACKS> {
        gated_norm_grad_kernel<T, N, G, PACKS><<<blocks_for(blocks, 1), norm_threads, 0, on>>>(spans, partial);
      });
    });
    SO_CUDA_LAUNCHED(op);
  }
  finish_column_sums(on, g.dweight, partial, blocks, head_dim, g.dweight_mode);
}

}  // namespace so
