// One head that several share, and the sum of their gradients: memory-bound, each byte read and written once. A thread
// does N dimensions of a row, in all heads.
#include "device/cuda/kernel.h"
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/heads.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 256;

template <class T, int N>
__global__ void __launch_bounds__(threads)
    spread_head_kernel(Span<T> to, Span<const T> from, std::int64_t pieces, int heads, int row_pieces) {
  const std::int64_t piece = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (piece >= pieces) return;
  const std::int64_t n = piece / row_pieces;
  const int d = static_cast<int>(piece % row_pieces) * N;
  using P = Pack<T, N>;
  const P values = *reinterpret_cast<const P*>(from.head(n, 0) + d);
  for (int h = 0; h < heads; ++h) *reinterpret_cast<P*>(to.head(n, h) + d) = values;
}

template <class T, int N>
__global__ void __launch_bounds__(threads)
    sum_heads_kernel(Span<T> to, Span<const T> from, std::int64_t pieces, int heads, int row_pieces) {
  const std::int64_t piece = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (piece >= pieces) return;
  const std::int64_t n = piece / row_pieces;
  const int d = static_cast<int>(piece % row_pieces) * N;
  float sum[N] = {};
#pragma unroll 4
  for (int h = 0; h < heads; ++h) {
    float values[N];
    load<N>(values, from.head(n, h) + d);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += values[i];
  }
  store<N>(to.head(n, 0) + d, sum);
}

// Calls launch.operator()<T, N>(blocks, pieces, pieces of a row) for what a thread may take at a time.
template <class F>
void with_pieces(const Heads& one, const Heads& all, F&& launch) {
  const std::int64_t rows = all.rows.dim(0);
  if (rows == 0) return;
  with_type(all.rows.dtype(), [&]<class T> {
    constexpr int N = pack_size<T>;
    const auto call = [&]<int WIDTH> {
      const std::int64_t of_row = all.head_dim / WIDTH, pieces = rows * of_row;
      launch.template operator()<T, WIDTH>(blocks_for(pieces, threads), pieces, static_cast<int>(of_row));
    };
    if (all.head_dim % N == 0 && heads_aligned<T, N>(one) && heads_aligned<T, N>(all))
      call.template operator()<N>();
    else
      call.template operator()<1>();
  });
}

}  // namespace

void CudaOps::spread_head(Stream& stream, Heads out, Heads in) {
  const char* op = "spread_head";
  expect_shared_head(op, "in", in, "out", out);
  const cudaStream_t on = enter(stream);
  with_pieces(in, out, [&]<class T, int N>(unsigned blocks, std::int64_t pieces, int row_pieces) {
    spread_head_kernel<T, N><<<blocks, threads, 0, on>>>(span_of<T>(out), span_of<const T>(in), pieces,
                                                         static_cast<int>(out.heads), row_pieces);
  });
  SO_CUDA_LAUNCHED(op);
}

void CudaOps::sum_heads(Stream& stream, Heads out, Heads in) {
  const char* op = "sum_heads";
  expect_shared_head(op, "out", out, "in", in);
  const cudaStream_t on = enter(stream);
  with_pieces(out, in, [&]<class T, int N>(unsigned blocks, std::int64_t pieces, int row_pieces) {
    sum_heads_kernel<T, N><<<blocks, threads, 0, on>>>(span_of<T>(out), span_of<const T>(in), pieces,
                                                       static_cast<int>(in.heads), row_pieces);
  });
  SO_CUDA_LAUNCHED(op);
}

}  // namespace so
