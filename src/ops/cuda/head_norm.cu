// RMS norm of heads without a weight, and its gradient: memory-bound, each byte read and written once.
#include <algorithm>

#include "device/cuda/kernel.h"
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/heads.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 128;

// A group of G lanes does a head: lane l holds the packs l, l + G, ... of N elements, PACKS of them.
template <class T, int N, int G, int PACKS>
__global__ void __launch_bounds__(threads)
    head_norm_kernel(Span<T> out, Span<const T> in, float* inv_rms, float epsilon, std::int64_t items, int heads,
                     int head_dim) {
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) / G;
  const int first = threadIdx.x % G * N;
  const bool mine = item < items;  // every lane takes part in sums
  const std::int64_t row = mine ? item / heads : 0;
  const int head = mine ? static_cast<int>(item - row * heads) : 0;
  const T* from = in.head(row, head);
  Words<T, N> values[PACKS] = {};
  float squares = 0;
#pragma unroll
  for (int p = 0; p < PACKS; ++p)
    if (const int i = first + p * G * N; mine && i < head_dim) {
      values[p] = fetch<N>(from + i);
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
      float v[N];
      widen<T>(v, values[p]);
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] *= r;
      store<N>(to + i, v);
    }
}

// With u = x r: dx = r (dout - u mean(dout u)). A lane has read all that it has of a head before it writes, so that din
// may lie on dout.
template <class T, int N, int G, int PACKS>
__global__ void __launch_bounds__(threads)
    head_norm_grad_kernel(Span<T> din, Span<const T> dout, Span<const T> in, const float* inv_rms, bool add,
                          std::int64_t items, int heads, int head_dim) {
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) / G;
  const int first = threadIdx.x % G * N;
  const bool mine = item < items;
  const std::int64_t row = mine ? item / heads : 0;
  const int head = mine ? static_cast<int>(item - row * heads) : 0;
  const T *from = in.head(row, head), *douts = dout.head(row, head);
  Words<T, N> values[PACKS] = {}, gradients[PACKS] = {};
  float dot = 0;
#pragma unroll
  for (int p = 0; p < PACKS; ++p)
    if (const int i = first + p * G * N; mine && i < head_dim) {
      values[p] = fetch<N>(from + i);
      gradients[p] = fetch<N>(douts + i);
      float v[N], dy[N];
      widen<T>(v, values[p]);
      widen<T>(dy, gradients[p]);
#pragma unroll
      for (int j = 0; j < N; ++j) dot += v[j] * dy[j];
    }
  const float r = mine ? inv_rms[item] : 0.0f;
  const float k = group_sum<G>(dot) * r / static_cast<float>(head_dim) * r;  // r mean(dout u)
  if (!mine) return;
  T* to = din.head(row, head);
#pragma unroll
  for (int p = 0; p < PACKS; ++p)
    if (const int i = first + p * G * N; i < head_dim) {
      float v[N], dy[N], own[N] = {};
      widen<T>(v, values[p]);
      widen<T>(dy, gradients[p]);
      if (add) load<N>(own, to + i);
#pragma unroll
      for (int j = 0; j < N; ++j) own[j] += r * (dy[j] - v[j] * k);
      store<N>(to + i, own);
    }
}

// Calls f.operator()<N, G, PACKS>() for these heads: 16-byte accesses if they are aligned, else single elements.
template <class T, class F>
void with_group(const char* op, std::initializer_list<Heads> all, F&& f) {
  constexpr int N = pack_size<T>;
  const std::int64_t head_dim = all.begin()->head_dim;
  const bool aligned = head_dim % N == 0 && std::all_of(all.begin(), all.end(), heads_aligned<T, N>);
  if (aligned && head_dim <= N * 16)
    f.template operator()<N, 16, 1>();
  else if (aligned && head_dim <= N * 32)
    f.template operator()<N, 32, 1>();
  else if (aligned && head_dim <= N * 64)
    f.template operator()<N, 32, 2>();
  else if (aligned && head_dim <= N * 128)
    f.template operator()<N, 32, 4>();
  else if (head_dim <= 1024)
    f.template operator()<1, 32, 32>();
  else
    fail("{}: heads of {} elements are longer than the CUDA backend takes (1024)", op, head_dim);
}

}  // namespace

void CudaOps::head_norm(Stream& stream, Heads out, Heads in, Tensor inv_rms, float epsilon) {
  expect_head_norm(out, in, inv_rms);
  const cudaStream_t on = enter(stream);
  const std::int64_t items = in.rows.dim(0) * in.heads;
  if (items == 0) return;
  with_type(in.rows.dtype(), [&]<class T> {
    with_group<T>("head_norm", {in, out}, [&]<int N, int G, int PACKS> {
      head_norm_kernel<T, N, G, PACKS><<<blocks_for(items * G, threads), threads, 0, on>>>(
          span_of<T>(out), span_of<const T>(in), inv_rms.as<float>(), epsilon, items, static_cast<int>(in.heads),
          static_cast<int>(in.head_dim));
    });
  });
  SO_CUDA_LAUNCHED("head_norm");
}

void CudaOps::head_norm_grad(Stream& stream, const HeadNormGrad& g) {
  expect_head_norm_grad(g);
  const cudaStream_t on = enter(stream);
  const std::int64_t items = g.in.rows.dim(0) * g.in.heads;
  if (items == 0) return;
  with_type(g.in.rows.dtype(), [&]<class T> {
    with_group<T>("head_norm_grad", {g.in, g.din, g.dout}, [&]<int N, int G, int PACKS> {
      head_norm_grad_kernel<T, N, G, PACKS><<<blocks_for(items * G, threads), threads, 0, on>>>(
          span_of<T>(g.din), span_of<const T>(g.dout), span_of<const T>(g.in), g.inv_rms.as<float>(),
          g.din_mode == Accumulate::add, items, static_cast<int>(g.in.heads), static_cast<int>(g.in.head_dim));
    });
  });
  SO_CUDA_LAUNCHED("head_norm_grad");
}

}  // namespace so
