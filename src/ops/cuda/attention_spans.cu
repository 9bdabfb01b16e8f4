// Small kernels around attention: ragged offsets, the row sums of dout out, and copying heads.
#include <algorithm>

#include "device/cuda/kernel.h"
#include "ops/checks.h"
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/heads.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 256;

__global__ void __launch_bounds__(threads) ragged_offsets_kernel(RaggedOffsets to, const std::int32_t* cu_q,
                                                                 const std::int32_t* cu_k, int documents, int batch) {
  const int i = static_cast<int>(blockIdx.x) * threads + static_cast<int>(threadIdx.x);
  if (i > batch) return;
  const int at = min(i, documents), next = min(i + 1, documents);
  for (int t = 0; t < to.tensors; ++t) to.offsets[t][i] = (to.keys[t] ? cu_k[at] : cu_q[at]) * to.widths[t];
  if (i == batch) return;
  to.lengths_q[i] = cu_q[next] - cu_q[at];
  to.lengths_k[i] = cu_k[next] - cu_k[at];
}

// A group of lanes has a row and head, and reads N elements at a time.
template <class T, int N, int LANES>
__global__ void __launch_bounds__(threads) delta_kernel(AttentionArguments a) {
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * (threads / LANES) + threadIdx.x / LANES;
  const std::int64_t own = min(item, a.q_rows * a.heads - 1), n = own / a.heads, h = own % a.heads;
  const T* const out = static_cast<const T*>(a.out.at) + n * a.out.width + h * a.head_dim;
  const T* const dout = static_cast<const T*>(a.dout.at) + n * a.dout.width + h * a.head_dim;
  float sum = 0;
  for (int d = static_cast<int>(threadIdx.x) % LANES * N; d < a.head_dim; d += LANES * N) {
    float x[N], y[N];
    load<N>(x, out + d);
    load<N>(y, dout + d);
#pragma unroll
    for (int i = 0; i < N; ++i) sum = fmaf(x[i], y[i], sum);
  }
  sum = group_sum<LANES>(sum);
  if (threadIdx.x % LANES == 0 && item < a.q_rows * a.heads) a.delta[item] = sum;
}

// Grid: x over the pieces of all rows, y: dk, dv.
__global__ void __launch_bounds__(threads)
    partial_sums_kernel(PartialSums dk, PartialSums dv, const std::int32_t* cu, int documents) {
  constexpr int N = pack_size<__nv_bfloat16>;
  const PartialSums& s = blockIdx.y == 0 ? dk : dv;
  const std::int64_t pieces = s.head_dim / N, item = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  const std::int64_t row = item / pieces, d = item % pieces * N;
  if (row >= s.rows || (cu && (row < cu[0] || row >= cu[documents]))) return;
  const auto* from = static_cast<const __nv_bfloat16*>(s.parts) + row * s.head_dim + d;
  float sum[N], next[N];
  load<N>(sum, from);
  for (int p = 1; p < s.count; ++p) {
    load<N>(next, from + p * s.rows * s.head_dim);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += next[i];
  }
  store<N>(static_cast<__nv_bfloat16*>(s.to.at) + row * s.to.width + d, sum);
}

// Grid: x over the pieces of all rows, y: dq, dk, dv.
struct TileSums {
  TileSum of[3];
};
__global__ void __launch_bounds__(threads) tile_sums_kernel(TileSums sums) {
  constexpr int N = pack_size<__nv_bfloat16>;
  const TileSum& s = sums.of[blockIdx.y];
  const std::int64_t pieces = s.columns / N, item = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  const std::int64_t row = item / pieces, column = item % pieces * N;
  if (row >= s.rows) return;
  float sum[N];
  load<N>(sum, static_cast<const __nv_bfloat16*>(s.part) + item * N);
  float* const kept = s.sum + item * N;
  if (!s.first) {
    float before[N];
    load<N>(before, kept);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += before[i];
  }
  if (s.last) return store<N>(static_cast<__nv_bfloat16*>(s.to.at) + row * s.to.width + column, sum);
  store<N>(kept, sum);
}

__global__ void __launch_bounds__(threads)
    statistics_kernel(AttentionArguments a, std::int64_t begin, std::int64_t first_row, std::int64_t rows,
                      int first_head, int heads, LseLayout layout, float* to) {
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (item >= rows * heads) return;
  const std::int64_t r = item / heads, h = item % heads;
  to[h * layout.head + r * layout.row] =
      a.lse[begin * a.heads + (first_head + h) * a.lse_layout.head + (first_row + r) * a.lse_layout.row];
}

__global__ void one_document_kernel(std::int32_t* to, std::int32_t queries, std::int32_t keys) {
  to[0] = to[2] = 0;
  to[1] = queries;
  to[3] = keys;
}

// Grid: x over rows, y over pieces of a row's `width` elements, which are heads of head_dim.
template <class T, int N>
__global__ void __launch_bounds__(threads) copy_heads_kernel(Span<T> to, Span<const T> from, int width, int head_dim) {
  const int i = (static_cast<int>(blockIdx.y) * threads + threadIdx.x) * N, head = i / head_dim;
  if (i >= width) return;
  using P = Pack<T, N>;
  *reinterpret_cast<P*>(to.head(blockIdx.x, head) + i % head_dim) =
      *reinterpret_cast<const P*>(from.head(blockIdx.x, head) + i % head_dim);
}

}  // namespace

void ragged_offsets(cudaStream_t stream, const RaggedOffsets& to, const std::int32_t* cu_q, const std::int32_t* cu_k,
                    int documents, int batch) {
  ragged_offsets_kernel<<<blocks_for(batch + 1, threads), threads, 0, stream>>>(to, cu_q, cu_k, documents, batch);
  SO_CUDA_LAUNCHED("ragged_offsets_kernel");
}

void attention_delta(cudaStream_t stream, DType dtype, const AttentionArguments& a) {
  if (a.q_rows == 0) return;
  with_type(dtype, [&]<class T>() {
    constexpr int N = pack_size<T>;
    const auto launch = [&]<int WIDTH, int LANES>() {
      delta_kernel<T, WIDTH, LANES><<<blocks_for(a.q_rows * a.heads, threads / LANES), threads, 0, stream>>>(a);
    };
    if (a.head_dim % N != 0 || !rows_aligned<T, N>(a.out.width, static_cast<const T*>(a.out.at)) ||
        !rows_aligned<T, N>(a.dout.width, static_cast<const T*>(a.dout.at)))
      launch.template operator()<1, warp>();
    else if (a.head_dim <= 8 * N)
      launch.template operator()<N, 8>();
    else
      launch.template operator()<N, 16>();
  });
  SO_CUDA_LAUNCHED("delta_kernel");
}

void add_partial_sums(cudaStream_t stream, const PartialSums& dk, const PartialSums& dv, const std::int32_t* cu,
                      int documents) {
  const dim3 grid(blocks_for(dk.rows * (dk.head_dim / pack_size<__nv_bfloat16>), threads), 2);
  partial_sums_kernel<<<grid, threads, 0, stream>>>(dk, dv, cu, documents);
  SO_CUDA_LAUNCHED("partial_sums_kernel");
}

void add_tile(cudaStream_t stream, const TileSum (&sums)[3]) {
  std::int64_t most = 0;
  for (const TileSum& s : sums) most = std::max(most, s.rows * (s.columns / pack_size<__nv_bfloat16>));
  const dim3 grid(blocks_for(most, threads), 3);
  tile_sums_kernel<<<grid, threads, 0, stream>>>({{sums[0], sums[1], sums[2]}});
  SO_CUDA_LAUNCHED("tile_sums_kernel");
}

void copy_statistics(cudaStream_t stream, const AttentionArguments& a, std::int64_t begin, std::int64_t first_row,
                     std::int64_t rows, std::int64_t first_head, std::int64_t heads, LseLayout layout, float* to) {
  statistics_kernel<<<blocks_for(rows * heads, threads), threads, 0, stream>>>(
      a, begin, first_row, rows, static_cast<int>(first_head), static_cast<int>(heads), layout, to);
  SO_CUDA_LAUNCHED("statistics_kernel");
}

void one_document(cudaStream_t stream, std::int32_t* to, std::int32_t queries, std::int32_t keys) {
  one_document_kernel<<<1, 1, 0, stream>>>(to, queries, keys);
  SO_CUDA_LAUNCHED("one_document_kernel");
}

void CudaOps::copy_heads(Stream& stream, Heads out, Heads in) {
  const cudaStream_t s = enter(stream);
  expect_compute_dtype("copy_heads", "in", in.rows.dtype());
  expect_same_heads("copy_heads", "in", in, "out", out);
  const std::int64_t rows = in.rows.dim(0), width = in.heads * in.head_dim;
  if (rows * width == 0) return;
  SO_CHECK(width < std::int64_t{1} << 30, "copy_heads: {} elements a row", width);
  if (in.heads > 1 && in.step() == in.head_dim && out.step() == out.head_dim) {  // side by side: as one
    in = {in.rows, in.offset, 1, width};
    out = {out.rows, out.offset, 1, width};
  }
  with_type(in.rows.dtype(), [&]<class T>() {
    const auto to = span_of<T>(out);
    const auto from = span_of<const T>(in);
    const auto launch = [&]<int N>() {
      const dim3 grid(blocks_for(rows, 1), blocks_for(width, std::int64_t{threads} * N));
      copy_heads_kernel<T, N>
          <<<grid, threads, 0, s>>>(to, from, static_cast<int>(width), static_cast<int>(in.head_dim));
    };
    constexpr int N = pack_size<T>;
    if (in.head_dim % N == 0 && heads_aligned<T, N>(in) && heads_aligned<T, N>(out))
      launch.template operator()<N>();
    else
      launch.template operator()<1>();
  });
  SO_CUDA_LAUNCHED("copy_heads_kernel");
}

}  // namespace so
