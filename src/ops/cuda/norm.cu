// RMS normalisation with the residual addition before it, and its gradient: memory-bound, each byte read and written
// once. A block does a row, held in registers between the sum over it and the use of that sum. Rows may lie inside
// wider ones, as a projection does in the matrix of q, k and v.
#include <algorithm>

#include "device/cuda/kernel.h"
#include "ops/checks.h"
#include "ops/cuda/column_sums.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/fp8_codes.h"
#include "ops/fp8_checks.h"

namespace so {
namespace {

using namespace kernel;

constexpr int max_threads = 512;

// How a row is spread over a block: thread t holds packs t, t + threads, ... of N elements, PACKS of them.
struct RowSplit {
  int threads;
  static RowSplit of(std::int64_t width, int pack, int packs) {
    const std::int64_t needed = (width + pack * packs - 1) / (pack * packs);
    return {static_cast<int>((needed + warp - 1) / warp * warp)};
  }
};

// Calls f.operator()<N, PACKS, THREADS at most>() with the split of rows of `width`: 16-byte accesses if they are
// aligned, else single elements.
template <class T, class F>
void with_split(const char* op, std::int64_t width, bool aligned, F&& f) {
  constexpr int N = pack_size<T>;
  // Two blocks of at most 320 threads fit a multiprocessor with a hundred registers a thread.
  if (aligned && width <= 2LL * N * 320)
    f.template operator()<N, 2, 320>();
  else if (aligned && width <= 2LL * N * max_threads)
    f.template operator()<N, 2, max_threads>();
  else if (aligned && width <= 8LL * N * max_threads)
    f.template operator()<N, 8, max_threads>();
  else if (width <= 4LL * max_threads)
    f.template operator()<1, 4, max_threads>();
  else if (width <= 32LL * max_threads)
    f.template operator()<1, 32, max_threads>();
  else
    fail("{}: rows of {} elements are longer than the CUDA backend takes ({})", op, width, 32 * max_threads);
}

// Rows of `pitch` elements, of which the first are meant.
template <class T>
struct PitchedRows {
  T* data;
  std::int64_t pitch;
  __device__ T* row(std::int64_t n) const { return data + n * pitch; }
};
template <class T>
PitchedRows<T> rows_of(const Heads& heads) {
  return {static_cast<T*>(heads.rows.data()) + heads.offset, heads.rows.dim(1)};
}
// A matrix as one head that fills its rows.
Heads whole(const Tensor& matrix) { return {matrix, 0, 1, matrix.rank() == 2 ? matrix.dim(1) : 0}; }
// Whether every row begins at a multiple of N elements' bytes.
template <class T, int N>
bool pitched_aligned(const PitchedRows<T>& rows) {
  return rows_aligned<T, N>(rows.pitch, rows.data);
}

// The sum over the block, in every thread; two of them can be in use alternately without a barrier between.
__device__ inline float row_sum(float x, float* shared) {
  x = warp_sum(x);
  const int warps = blockDim.x / warp;
  if (warps == 1) return x;
  if (threadIdx.x % warp == 0) shared[threadIdx.x / warp] = x;
  __syncthreads();
  float sum = threadIdx.x % warp < warps ? shared[threadIdx.x % warp] : 0.0f;
  return warp_sum(sum);
}

// CODES: the norm goes to `codes`, with the rows of zeros that fill up a four, and to `out` if that is there.
template <class T, int N, int PACKS, int THREADS, bool DELTA, bool CODES>
__global__ void __launch_bounds__(THREADS)
    add_rms_norm_kernel(PitchedRows<T> out, Fp8Target codes, T* sum, float* inv_rms, PitchedRows<const T> x,
                        const T* delta, const T* weight, NormTerms terms, int width) {
  __shared__ float shared[warp];
  if constexpr (CODES) {
    if (blockIdx.x >= codes.rows) {
      for (int i = threadIdx.x * N; i < width; i += blockDim.x * N) round_part_of_row<N>(codes, blockIdx.x, i, {});
      return;
    }
  }
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * width;
  const T* from = x.row(blockIdx.x);
  T* to = out.row(blockIdx.x);
  const int stride = blockDim.x * N;
  float v[PACKS][N];
#pragma unroll
  for (int p = 0; p < PACKS; ++p)
    if (const int i = threadIdx.x * N + p * stride; i < width) load<N>(v[p], from + i);
  if constexpr (DELTA) {
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
      if (const int i = threadIdx.x * N + p * stride; i < width) {
        float d[N];
        load<N>(d, delta + at + i);
        // The norm is taken of the sum as it is stored, rounded to T: that is what the backward pass will read.
#pragma unroll
        for (int j = 0; j < N; ++j) v[p][j] = to_float(from_float<T>(v[p][j] + terms.delta_scale * d[j]));
        store<N>(sum + at + i, v[p]);
      }
  }
  float squares = 0;
#pragma unroll
  for (int p = 0; p < PACKS; ++p)
    if (const int i = threadIdx.x * N + p * stride; i < width) {
#pragma unroll
      for (int j = 0; j < N; ++j) squares += v[p][j] * v[p][j];
    }
  squares = row_sum(squares, shared);
  const float r = 1.0f / sqrtf(squares / static_cast<float>(width) + terms.epsilon);
  if (threadIdx.x == 0) inv_rms[blockIdx.x] = r;
#pragma unroll
  for (int p = 0; p < PACKS; ++p)
    if (const int i = threadIdx.x * N + p * stride; i < width) {
      float w[N];
      load<N>(w, weight + i);
#pragma unroll
      for (int j = 0; j < N; ++j) w[j] = (terms.weight_offset + w[j]) * (v[p][j] * r);
      if constexpr (CODES) {
        const Words<T, N> rounded = narrow<T>(w);
        if (out.data) store_words(to + i, rounded.at);
        widen<T>(w, rounded);
        round_part_of_row(codes, blockIdx.x, i, w);
      } else {
        store<N>(to + i, w);
      }
    }
}

// With y = x r w, r = 1/sqrt(mean(x^2) + epsilon) and g = dout w:
//   dx = r (g - x r mean(g x r)),   dw = sum over rows of dout x r.
// Block b does rows b, b + grid, ...; its part of dw is row b of `partial`. The next row is fetched before the sum over
// this one is taken, so that memory is never idle; rows stay packed until they are used, to leave registers for that.
template <class T, int N, int PACKS, int THREADS, bool RESIDUAL>
__global__ void __launch_bounds__(THREADS, THREADS <= 320 ? 2 : 1)
    rms_norm_grad_kernel(PitchedRows<T> dx, float* partial, PitchedRows<const T> dout, const T* residual,
                         PitchedRows<const T> x, const float* inv_rms, const T* weight, float weight_offset,
                         std::int64_t rows, int width) {
  struct Row {
    Words<T, N> dout[PACKS], x[PACKS], residual[RESIDUAL ? PACKS : 1];
    float r;
  };
  __shared__ float shared[2][warp];
  const int stride = blockDim.x * N;
  const auto read = [&](Row& row, std::int64_t n) {
    const T *dy = dout.row(n), *v = x.row(n);
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
      if (const int i = threadIdx.x * N + p * stride; i < width) {
        row.dout[p] = fetch<N>(dy + i);
        row.x[p] = fetch<N>(v + i);
        if constexpr (RESIDUAL) row.residual[p] = fetch<N>(residual + n * width + i);
      }
    row.r = inv_rms[n];
  };
  float dw[PACKS][N];
#pragma unroll
  for (int p = 0; p < PACKS; ++p)
#pragma unroll
    for (int j = 0; j < N; ++j) dw[p][j] = 0;
  Row row, next;
  read(row, blockIdx.x);
  int turn = 0;
  for (std::int64_t n = blockIdx.x; n < rows; n += gridDim.x, turn ^= 1) {
    if (n + gridDim.x < rows) read(next, n + gridDim.x);
    float dot = 0;
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
      if (const int i = threadIdx.x * N + p * stride; i < width) {
        float g[N], v[N], w[N];
        widen<T>(g, row.dout[p]);
        widen<T>(v, row.x[p]);
        load<N>(w, weight + i);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          dw[p][j] += g[j] * (v[j] * row.r);
          dot += g[j] * (weight_offset + w[j]) * v[j];
        }
      }
    dot = row_sum(dot, shared[turn]);
    const float k = dot * row.r / static_cast<float>(width) * row.r;  // r mean(g x r)
#pragma unroll
    for (int p = 0; p < PACKS; ++p)
      if (const int i = threadIdx.x * N + p * stride; i < width) {
        float g[N], v[N], w[N], res[N];
        widen<T>(g, row.dout[p]);
        widen<T>(v, row.x[p]);
        load<N>(w, weight + i);
        if constexpr (RESIDUAL) widen<T>(res, row.residual[p]);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          g[j] = row.r * (g[j] * (weight_offset + w[j]) - v[j] * k);
          if constexpr (RESIDUAL) g[j] += res[j];
        }
        store<N>(dx.row(n) + i, g);
      }
    row = next;
  }
#pragma unroll
  for (int p = 0; p < PACKS; ++p)
    if (const int i = threadIdx.x * N + p * stride; i < width) {
#pragma unroll
      for (int j = 0; j < N; ++j) partial[static_cast<std::int64_t>(blockIdx.x) * width + i + j] = dw[p][j];
    }
}

// Enqueues the forward kernel for rows of the weight's width. `sum` and `delta` are dense, or both empty. `out` may be
// empty where `codes` is not.
void launch_norm(const char* op, cudaStream_t on, const Heads& out, const Fp8Matrix& codes, Tensor sum, Tensor inv_rms,
                 const Heads& x, Tensor delta, Tensor weight, const NormTerms& terms) {
  const std::int64_t rows = x.rows.dim(0), width = weight.size();
  if (rows == 0 || width == 0) return;
  with_type(weight.dtype(), [&]<class T> {
    const auto to = out.rows ? rows_of<T>(out) : PitchedRows<T>{};
    const auto from = rows_of<const T>(x);
    auto* s = static_cast<T*>(sum.data());
    const auto *b = static_cast<const T*>(delta.data()), *w = static_cast<const T*>(weight.data());
    constexpr int pack = pack_size<T>;
    const bool aligned =
        rows_aligned<T, pack>(width, s, b, w) && pitched_aligned<T, pack>(to) && pitched_aligned<const T, pack>(from);
    SO_CHECK(aligned || !codes, "{}: rows that do not begin at 16 bytes", op);
    with_split<T>(op, width, aligned, [&]<int N, int PACKS, int THREADS> {
      const auto run = [&]<bool CODES> {
        const int threads = RowSplit::of(width, N, PACKS).threads;
        const auto kernel = b ? add_rms_norm_kernel<T, N, PACKS, THREADS, true, CODES>
                              : add_rms_norm_kernel<T, N, PACKS, THREADS, false, CODES>;
        kernel<<<blocks_for(CODES ? fp8_stored_rows(rows) : rows, 1), threads, 0, on>>>(
            to, target_of(codes, rows), s, inv_rms.as<float>(), from, b, w, terms, static_cast<int>(width));
      };
      if constexpr (N == pack_size<T>)
        if (codes) return run.template operator()<true>();
      run.template operator()<false>();
    });
  });
  SO_CUDA_LAUNCHED(op);
}

// The rows of a norm's gradient.
struct GradRows {
  Heads dx, dout, x;
  Tensor residual, inv_rms, weight;
  float weight_offset;
};

// Enqueues the backward kernel in `blocks` blocks, each of which leaves a row of `partial`.
void launch_norm_grad(const char* op, cudaStream_t on, const GradRows& g, float* partial, std::int64_t blocks) {
  const std::int64_t rows = g.x.rows.dim(0), width = g.weight.size();
  if (rows == 0) return;
  with_type(g.weight.dtype(), [&]<class T> {
    const auto to = rows_of<T>(g.dx);
    const auto dy = rows_of<const T>(g.dout), v = rows_of<const T>(g.x);
    const auto *res = static_cast<const T*>(g.residual.data()), *w = static_cast<const T*>(g.weight.data());
    constexpr int pack = pack_size<T>;
    const bool aligned = rows_aligned<T, pack>(width, res, w) && pitched_aligned<T, pack>(to) &&
                         pitched_aligned<const T, pack>(dy) && pitched_aligned<const T, pack>(v);
    with_split<T>(op, width, aligned, [&]<int N, int PACKS, int THREADS> {
      const int threads = RowSplit::of(width, N, PACKS).threads;
      const auto kernel =
          res ? rms_norm_grad_kernel<T, N, PACKS, THREADS, true> : rms_norm_grad_kernel<T, N, PACKS, THREADS, false>;
      kernel<<<blocks_for(blocks, 1), threads, 0, on>>>(to, partial, dy, res, v, g.inv_rms.as<float>(), w,
                                                        g.weight_offset, rows, static_cast<int>(width));
    });
  });
  SO_CUDA_LAUNCHED(op);
}

// Blocks for several on each multiprocessor, all of them at once, so that one's arithmetic runs beside another's loads.
std::int64_t grad_blocks(std::int64_t rows, std::int64_t multiprocessors) {
  constexpr std::int64_t blocks_per_multiprocessor = 2;
  return std::min(rows, blocks_per_multiprocessor * multiprocessors);
}

}  // namespace

void CudaOps::add_rms_norm(Stream& stream, Tensor out, Tensor sum, Tensor inv_rms, Tensor x, Tensor delta,
                           Tensor weight, NormTerms terms, Fp8Matrix rows) {
  expect_add_rms_norm(out, sum, inv_rms, x, delta, weight, rows);
  launch_norm("add_rms_norm", enter(stream), whole(out), rows, sum, inv_rms, whole(x), delta, weight, terms);
}

void CudaOps::projection_norm(Stream& stream, Heads out, Heads in, HeadNorm norm) {
  const char* op = "projection_norm";
  expect_projection_norm(op, out, in, norm);
  launch_norm(op, enter(stream), out, {}, Tensor(), norm.inv_rms, in, Tensor(), norm.weight,
              {norm.epsilon, norm.weight_offset});
}

void CudaOps::rms_norm_grad(Stream& stream, const RmsNormGrad& g) {
  const char* op = "rms_norm_grad";
  SO_CHECK(g.x.rank() == 2, "{}: x is {}", op, shape_string(g.x.shape()));
  expect_compute_dtype(op, "x", g.x.dtype());
  const DType dtype = g.x.dtype();
  const std::int64_t rows = g.x.dim(0), width = g.x.dim(1);
  expect_tensor(op, "x", g.x, dtype, {rows, width});
  expect_tensor(op, "dx", g.dx, dtype, {rows, width});
  expect_tensor(op, "dout", g.dout, dtype, {rows, width});
  if (g.residual) expect_tensor(op, "residual", g.residual, dtype, {rows, width});
  expect_tensor(op, "inv_rms", g.inv_rms, DType::f32, {rows});
  expect_tensor(op, "weight", g.weight, dtype, {width});
  expect_gradient(op, "dweight", g.dweight, dtype, {width});
  const cudaStream_t on = enter(stream);
  if (width == 0) return;
  const std::int64_t blocks = grad_blocks(rows, properties_.multiprocessors);
  auto* partial = scratch<float>(static_cast<std::size_t>(blocks * width));
  launch_norm_grad(op, on, {whole(g.dx), whole(g.dout), whole(g.x), g.residual, g.inv_rms, g.weight, g.weight_offset},
                   partial, blocks);
  finish_column_sums(on, g.dweight, partial, blocks, width, g.dweight_mode);
}

void CudaOps::projection_norm_grad(Stream& stream, const ProjectionNormGrad& g) {
  const char* op = "projection_norm_grad";
  expect_projection_norm(op, g.din, g.in, g.norm);
  expect_same_heads(op, "dout", g.dout, "din", g.din);
  expect_no_gaps(op, "dout", g.dout);
  const std::int64_t rows = g.in.rows.dim(0), width = g.in.heads * g.in.head_dim;
  expect_gradient(op, "dweight", g.dweight, g.din.rows.dtype(), {width});
  const cudaStream_t on = enter(stream);
  const std::int64_t blocks = grad_blocks(rows, properties_.multiprocessors);
  auto* partial = scratch<float>(static_cast<std::size_t>(blocks * width));
  launch_norm_grad(op, on, {g.din, g.dout, g.in, Tensor(), g.norm.inv_rms, g.norm.weight, g.norm.weight_offset},
                   partial, blocks);
  finish_column_sums(on, g.dweight, partial, blocks, width, g.dweight_mode);
}

}  // namespace so
