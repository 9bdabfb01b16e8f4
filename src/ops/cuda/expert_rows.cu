// Rows to the experts and back, and what the biases of experts take part in: memory-bound.
#include <algorithm>

#include "device/cuda/kernel.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/expert_of.h"
#include "ops/expert_checks.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 256, warps = threads / warp;
constexpr int ahead = 4;  // accesses of a thread that are on their way at a time

// Threads of a block for rows of `packs` packs, at most `threads`, with as few idle ones as possible.
int row_threads(std::int64_t packs) {
  const std::int64_t rounds = (packs + threads - 1) / threads;
  return static_cast<int>(((packs + rounds - 1) / rounds + warp - 1) / warp * warp);
}

// A thread block has a token, not a row: the token's row is read once and written to each of its places. Grid: x over
// tokens, y over pieces of a row.
template <class T, int N>
__global__ void __launch_bounds__(threads)
    gather_kernel(T* out, const T* x, const std::int32_t* rows, std::int64_t width, int choices) {
  const std::int64_t n = blockIdx.x, i = (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  if (i >= width) return;
  const Words<T, N> words = fetch<N>(x + n * width + i);
  for (int begin = 0; begin < choices; begin += ahead) {
    std::int64_t row[ahead];
#pragma unroll
    for (int k = 0; k < ahead; ++k)
      if (begin + k < choices) row[k] = rows[n * choices + begin + k];
#pragma unroll
    for (int k = 0; k < ahead; ++k)
      if (begin + k < choices) {
        T* to = out + row[k] * width + i;
        if constexpr (N * sizeof(T) >= 4)
          store_words(to, words.at);
        else
          *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(words.at[0]);
      }
  }
}

// Block: x over columns, y over tokens. Grid: x over tokens, y over pieces of a row; the blocks that run at a time have
// the same columns, so that their part of the biases stays in the L1 cache.
template <class T, int N, bool BIAS>
__global__ void __launch_bounds__(threads)
    sum_kernel(T* out, const T* y, const T* bias, const std::int32_t* experts, const std::int32_t* rows,
               const float* weights, std::int64_t tokens, std::int64_t width, int choices) {
  const std::int64_t n = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * N;
  if (n >= tokens || i >= width) return;
  float sum[N] = {};
  for (int begin = 0; begin < choices; begin += ahead) {
    Words<T, N> words[ahead];
    float weight[ahead];
#pragma unroll
    for (int k = 0; k < ahead; ++k)
      if (begin + k < choices) {
        const std::int64_t row = rows[n * choices + begin + k];
        words[k] = fetch<N>(y + row * width + i);
        if constexpr (BIAS) weight[k] = weights[row];
      }
#pragma unroll
    for (int k = 0; k < ahead; ++k)
      if (begin + k < choices) {
        float x[N];
        widen<T>(x, words[k]);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += x[j];
        if constexpr (BIAS) {
          load<N>(x, bias + experts[n * choices + begin + k] * width + i);
#pragma unroll
          for (int j = 0; j < N; ++j) sum[j] = fmaf(weight[k], x[j], sum[j]);
        }
      }
  }
  store<N>(out + n * width + i, sum);
}

constexpr int piece_threads = 128;

// A block sums a piece of rows, of piece_threads * N columns, for each expert that has some of them. Piece and expert
// only ever go up along the rows, one of them at least with each sum, so their sum numbers the sums: partial [pieces +
// experts, width]. Grid: x over pieces, y over columns.
template <class T, int N>
__global__ void __launch_bounds__(piece_threads)
    bias_piece_kernel(float* partial, const T* dy, const float* weights, const std::int32_t* offsets, std::int64_t rows,
                      std::int64_t width, int experts, std::int64_t rows_per_piece) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.y) * piece_threads + threadIdx.x) * N;
  if (i >= width) return;
  std::int64_t row = blockIdx.x * rows_per_piece;
  const std::int64_t end = min(rows, row + rows_per_piece);
  for (int e = expert_of(offsets, experts, row); row < end; ++e) {
    const std::int64_t stop = min(end, static_cast<std::int64_t>(offsets[e + 1]));
    if (stop <= row) continue;  // no rows
    float sum[N] = {};
    for (; row < stop; row += ahead) {
      Words<T, N> words[ahead];
      float weight[ahead];
#pragma unroll
      for (int k = 0; k < ahead; ++k)
        if (row + k < stop) {
          words[k] = fetch<N>(dy + (row + k) * width + i);
          weight[k] = weights ? weights[row + k] : 1.0f;
        }
#pragma unroll
      for (int k = 0; k < ahead; ++k)
        if (row + k < stop) {
          float x[N];
          widen<T>(x, words[k]);
#pragma unroll
          for (int j = 0; j < N; ++j) sum[j] = fmaf(weight[k], x[j], sum[j]);
        }
    }
    row = stop;
    store<N>(partial + (blockIdx.x + e) * width + i, sum);
  }
}

constexpr int finish_lanes = 8;

// An expert's sums over pieces, in order by lane, then the lanes. Block: x over columns, y over lanes; grid: x over
// columns, y over experts.
template <class G>
__global__ void __launch_bounds__(warp* finish_lanes)
    bias_finish_kernel(G* dbias, const float* partial, const std::int32_t* offsets, std::int64_t width,
                       std::int64_t rows_per_piece, bool add) {
  __shared__ float sums[finish_lanes][warp];
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * warp + threadIdx.x;
  const int e = blockIdx.y, begin = offsets[e], end = offsets[e + 1];
  float sum = 0;
  if (begin < end && i < width) {
    const std::int64_t last = (end - 1) / rows_per_piece;
#pragma unroll 4
    for (std::int64_t piece = begin / rows_per_piece + threadIdx.y; piece <= last; piece += finish_lanes)
      sum += partial[(piece + e) * width + i];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y > 0 || i >= width) return;
  for (int lane = 1; lane < finish_lanes; ++lane) sum += sums[lane][threadIdx.x];
  G& to = dbias[e * width + i];
  to = from_float<G>(add ? to_float(to) + sum : sum);
}

// A warp does a pair: those of a token are neighbours and find its row in the L1 cache.
template <class T, int N>
__global__ void __launch_bounds__(threads)
    bias_dot_kernel(float* dweights, const T* dout, const T* bias, const std::int32_t* experts,
                    const std::int32_t* rows, std::int64_t pairs, std::int64_t width, int choices) {
  const std::int64_t pair = static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / warp;
  if (pair >= pairs) return;
  const int lane = threadIdx.x % warp;
  const T *x = dout + pair / choices * width, *b = bias + experts[pair] * width;
  float sum = 0;
  for (std::int64_t begin = lane * N; begin < width; begin += ahead / 2 * warp * N) {
    Words<T, N> u[ahead / 2], v[ahead / 2];
#pragma unroll
    for (int k = 0; k < ahead / 2; ++k)
      if (const std::int64_t i = begin + k * warp * N; i < width) u[k] = fetch<N>(x + i), v[k] = fetch<N>(b + i);
#pragma unroll
    for (int k = 0; k < ahead / 2; ++k)
      if (begin + k * warp * N < width) {
        float xs[N], bs[N];
        widen<T>(xs, u[k]);
        widen<T>(bs, v[k]);
#pragma unroll
        for (int j = 0; j < N; ++j) sum = fmaf(xs[j], bs[j], sum);
      }
  }
  sum = warp_sum(sum);
  if (lane == 0) dweights[rows[pair]] = sum;
}

// f.operator()<T, N>() for rows of `width` at the pointers: 16-byte accesses if they are aligned, else single elements.
template <class F, class... Pointers>
void with_packs(DType dtype, std::int64_t width, F&& f, const Pointers*... pointers) {
  with_type(dtype, [&]<class T> {
    if (rows_aligned<T, pack_size<T>>(width, pointers...))
      f.template operator()<T, pack_size<T>>();
    else
      f.template operator()<T, 1>();
  });
}

template <class T>
T* data(const Tensor& tensor) {
  return static_cast<T*>(tensor.data());
}

}  // namespace

void CudaOps::gather_rows(Stream& stream, Tensor out, Tensor x, const Routing& routing) {
  const char* op = "gather_rows";
  const RoutingSize size = expect_gather_rows(op, out, x, routing);
  const cudaStream_t on = enter(stream);
  if (out.size() == 0) return;
  const std::int64_t width = out.dim(1);
  with_packs(
      out.dtype(), width,
      [&]<class T, int N> {
        const int block = row_threads((width + N - 1) / N);
        const dim3 grid(blocks_for(size.tokens, 1), blocks_for(width, static_cast<std::int64_t>(block) * N));
        gather_kernel<T, N><<<grid, block, 0, on>>>(data<T>(out), data<T>(x), routing.rows.as<std::int32_t>(), width,
                                                    static_cast<int>(size.choices));
      },
      out.data(), x.data());
  SO_CUDA_LAUNCHED(op);
}

void CudaOps::sum_rows(Stream& stream, Tensor out, Tensor y, Tensor bias, const Routing& routing) {
  const char* op = "sum_rows";
  const RoutingSize size = expect_sum_rows(op, out, y, bias, routing);
  const cudaStream_t on = enter(stream);
  if (out.size() == 0) return;
  const std::int64_t width = out.dim(1);
  with_packs(
      out.dtype(), width,
      [&]<class T, int N> {
        constexpr int bias_columns = 64;  // of packs: biases of 128 experts are then 128 KiB
        const dim3 block = bias ? dim3(bias_columns, threads / bias_columns) : dim3(row_threads((width + N - 1) / N));
        const dim3 grid(blocks_for(size.tokens, block.y), blocks_for(width, static_cast<std::int64_t>(block.x) * N));
        const auto kernel = bias ? sum_kernel<T, N, true> : sum_kernel<T, N, false>;
        kernel<<<grid, block, 0, on>>>(data<T>(out), data<T>(y), data<T>(bias), routing.experts.as<std::int32_t>(),
                                       routing.rows.as<std::int32_t>(), routing.weights.as<float>(), size.tokens, width,
                                       static_cast<int>(size.choices));
      },
      out.data(), y.data(), bias.data());
  SO_CUDA_LAUNCHED(op);
}

void CudaOps::expert_bias_grad(Stream& stream, Tensor dbias, Tensor dy, const Routing& routing, bool weighted,
                               Accumulate mode) {
  const char* op = "expert_bias_grad";
  const RoutingSize size = expect_expert_bias_grad(op, dbias, dy, routing);
  const cudaStream_t on = enter(stream);
  const std::int64_t width = dy.dim(1);
  if (dbias.size() == 0) return;
  // Pieces for every multiprocessor, but no more than that and the scratch need: what they leave is read again.
  constexpr std::int64_t most_pieces = 1024;
  std::int64_t rows_per_piece = 64;
  const auto pieces = [&] { return (size.rows + rows_per_piece - 1) / rows_per_piece; };
  const auto elements = [&] { return static_cast<std::size_t>((pieces() + size.experts) * width); };
  while (pieces() > 1 && (pieces() > most_pieces || elements() * sizeof(float) > scratch_.bytes())) rows_per_piece *= 2;
  auto* partial = scratch<float>(elements());
  const auto* offsets = routing.offsets.as<std::int32_t>();
  if (size.rows > 0) {
    with_packs(
        dy.dtype(), width,
        [&]<class T, int N> {
          const dim3 grid(blocks_for(pieces(), 1), blocks_for(width, std::int64_t{piece_threads} * N));
          bias_piece_kernel<T, N><<<grid, piece_threads, 0, on>>>(
              partial, data<T>(dy), weighted ? routing.weights.as<float>() : nullptr, offsets, size.rows, width,
              static_cast<int>(size.experts), rows_per_piece);
        },
        dy.data());
  }
  const dim3 grid(blocks_for(width, warp), blocks_for(size.experts, 1));
  with_type(dbias.dtype(), [&]<class G> {
    bias_finish_kernel<<<grid, dim3(warp, finish_lanes), 0, on>>>(data<G>(dbias), partial, offsets, width,
                                                                  rows_per_piece, mode == Accumulate::add);
  });
  SO_CUDA_LAUNCHED(op);
}

void CudaOps::expert_bias_dot(Stream& stream, Tensor dweights, Tensor dout, Tensor bias, const Routing& routing) {
  const char* op = "expert_bias_dot";
  const RoutingSize size = expect_expert_bias_dot(op, dweights, dout, bias, routing);
  const cudaStream_t on = enter(stream);
  if (size.rows == 0) return;
  const std::int64_t width = dout.dim(1);
  with_packs(
      dout.dtype(), width,
      [&]<class T, int N> {
        bias_dot_kernel<T, N><<<blocks_for(size.rows, warps), threads, 0, on>>>(
            dweights.as<float>(), data<T>(dout), data<T>(bias), routing.experts.as<std::int32_t>(),
            routing.rows.as<std::int32_t>(), size.rows, width, static_cast<int>(size.choices));
      },
      dout.data(), bias.data());
  SO_CUDA_LAUNCHED(op);
}

}  // namespace so
