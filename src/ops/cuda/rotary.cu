// Rotary position embedding, with the RMS norm of each head before it (qk-norm) when there is one, and their gradients.
//
// A group of lanes does a head: lane p holds the p-th pack of the first half of its dimensions and the matching one of
// the second half, so that the pairs that turn together are in one thread, and the norm's sums stay inside the group.
// Shapes that do not fit packs take the plain kernels below, and so do pairs of neighbours.
#include <algorithm>

#include "device/cuda/kernel.h"
#include "ops/checks.h"
#include "ops/cuda/column_sums.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/heads.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 128;
constexpr int max_head_dim = 1024;

template <class T>
struct Rotation {
  const std::int32_t* positions;
  const float* table;  // [positions, 2, half]
  std::int64_t table_rows;
  int half;  // of the dimensions that turn
  int heads, head_dim;
  std::int64_t rows;
  const T* weight;  // null without a norm
  float epsilon;
  float weight_offset;
  float* inv_rms;
  bool neighbours;  // RotaryPairs

  // The dimensions of pair i.
  __device__ int first_of(int i) const { return neighbours ? 2 * i : i; }
  __device__ int second_of(int i) const { return neighbours ? 2 * i + 1 : i + half; }
  __device__ const float* cosines(std::int64_t row) const {
    const std::int32_t position = positions[row];
    if (position < 0 || position >= table_rows) __trap();
    return table + static_cast<std::int64_t>(position) * 2 * half;
  }
};

// head_dim == 2 half == 2 N G. A group does HEADS neighbouring heads of a row, a divisor of their number: their memory
// is fetched at once, and the table and the weights serve all. BACK turns the other way: the gradient without a norm.
template <class T, int N, int G, int HEADS, bool NORM, bool BACK>
__global__ void __launch_bounds__(threads, 8) rotary_packs(Span<T> out, Span<const T> in, Rotation<T> a) {
  static_assert(!(NORM && BACK));
  const std::int64_t item = (static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x) / G;
  const int first = threadIdx.x % G * N, of_row = a.heads / HEADS;
  const std::int64_t row = item / of_row;
  const int head = static_cast<int>(item - row * of_row) * HEADS;
  const bool mine = row < a.rows;  // every lane takes part in sums
  // Packed until they are used: what a thread holds decides how many of them keep memory busy.
  Words<T, N> fetched[HEADS][2] = {};
  const float* table = nullptr;
  if (mine) {
#pragma unroll
    for (int h = 0; h < HEADS; ++h)
#pragma unroll
      for (int k = 0; k < 2; ++k) fetched[h][k] = fetch<N>(in.head(row, head + h) + k * a.half + first);
    table = a.cosines(row) + first;
  }
  float r[HEADS];
  if constexpr (NORM) {
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
      float squares = 0;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float x[N];
        widen<T>(x, fetched[h][k]);
#pragma unroll
        for (int j = 0; j < N; ++j) squares += x[j] * x[j];
      }
      r[h] = 1.0f / sqrtf(group_sum<G>(squares) / static_cast<float>(a.head_dim) + a.epsilon);
      if (mine && first == 0) a.inv_rms[row * a.heads + head + h] = r[h];
    }
  }
  if (!mine) return;
  float cosine[N], sine[N];
  load<N>(cosine, table);
  load<N>(sine, table + a.half);
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
    float x[N], y[N];
    widen<T>(x, fetched[h][0]);
    widen<T>(y, fetched[h][1]);
    if constexpr (NORM) {
      float weight[N];
      load<N>(weight, a.weight + first);
#pragma unroll
      for (int j = 0; j < N; ++j) x[j] *= r[h] * (a.weight_offset + weight[j]);
      load<N>(weight, a.weight + a.half + first);
#pragma unroll
      for (int j = 0; j < N; ++j) y[j] *= r[h] * (a.weight_offset + weight[j]);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float turn = BACK ? -sine[j] : sine[j], turned = x[j] * cosine[j] - y[j] * turn;
      y[j] = y[j] * cosine[j] + x[j] * turn;
      x[j] = turned;
    }
    T* to = out.head(row, head + h) + first;
    store<N>(to, x);
    store<N>(to + a.half, y);
  }
}

// With a norm: the gradient g of the rotation's input goes through it as in rms_norm_grad. Groups take HEADS heads of a
// row in turn, fetched at once; a block's part of dweight is a row of `partial`.
template <class T, int N, int G, int HEADS>
__global__ void __launch_bounds__(threads, 4)
    rotary_norm_grad_packs(Span<T> din, Span<const T> dout, Span<const T> in, float* partial, Rotation<T> a) {
  constexpr int groups = threads / G;
  const int group = threadIdx.x / G, first = threadIdx.x % G * N, of_row = a.heads / HEADS;
  const std::int64_t items = a.rows * of_row, step = static_cast<std::int64_t>(gridDim.x) * groups;
  float dweight[2][N] = {};
  // Every lane of a warp goes round as often as its first, so that all take part in sums.
  std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * groups + group;
  for (std::int64_t leader = item - group % (warp / G); leader < items; leader += step, item += step) {
    const bool mine = item < items;
    const std::int64_t row = mine ? item / of_row : 0;
    const int head = mine ? static_cast<int>(item - row * of_row) * HEADS : 0;
    Words<T, N> fetched[HEADS][2][2];
    float r[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        fetched[h][0][k] = fetch<N>(dout.head(row, head + h) + k * a.half + first);
        fetched[h][1][k] = fetch<N>(in.head(row, head + h) + k * a.half + first);
      }
      r[h] = a.inv_rms[row * a.heads + head + h];
    }
    const float* table = a.cosines(row) + first;
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
      float g[2][N], x[2][N], dot = 0;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        widen<T>(g[k], fetched[h][0][k]);
        widen<T>(x[k], fetched[h][1][k]);
      }
      {
        float cosine[N], sine[N];
        load<N>(cosine, table);
        load<N>(sine, table + a.half);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          const float turned = g[0][j] * cosine[j] + g[1][j] * sine[j];
          g[1][j] = g[1][j] * cosine[j] - g[0][j] * sine[j];
          g[0][j] = turned;
        }
      }
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float weight[N];
        load<N>(weight, a.weight + k * a.half + first);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          if (mine) dweight[k][j] += g[k][j] * (x[k][j] * r[h]);
          g[k][j] *= a.weight_offset + weight[j];
          dot += g[k][j] * x[k][j];
        }
      }
      const float mean = group_sum<G>(dot) * r[h] / static_cast<float>(a.head_dim) * r[h];
      if (!mine) continue;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
#pragma unroll
        for (int j = 0; j < N; ++j) g[k][j] = r[h] * (g[k][j] - x[k][j] * mean);
        store<N>(din.head(row, head + h) + k * a.half + first, g[k]);
      }
    }
  }
  __shared__ float sums[groups][2 * N * G];
#pragma unroll
  for (int k = 0; k < 2; ++k)
#pragma unroll
    for (int j = 0; j < N; ++j) sums[group][k * a.half + first + j] = dweight[k][j];
  __syncthreads();
  for (int d = threadIdx.x; d < a.head_dim; d += threads) {
    float sum = 0;
    for (int i = 0; i < groups; ++i) sum += sums[i][d];
    partial[static_cast<std::int64_t>(blockIdx.x) * a.head_dim + d] = sum;
  }
}

// Any shape: a warp does a head, element by element; dimensions from 2 half on pass through. A lane reads and writes
// the same elements, so the output may be the input.
template <class T, bool NORM>
__global__ void __launch_bounds__(threads) rotary_plain(Span<T> out, Span<const T> in, Rotation<T> a) {
  const int lane = threadIdx.x % warp;
  const std::int64_t row = blockIdx.x;
  const float* cosines = a.cosines(row);
  for (int h = threadIdx.x / warp; h < a.heads; h += threads / warp) {
    const T* x = in.head(row, h);
    T* y = out.head(row, h);
    float r = 1;
    if constexpr (NORM) {
      float squares = 0;
      for (int d = lane; d < a.head_dim; d += warp) squares += to_float(x[d]) * to_float(x[d]);
      r = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(a.head_dim) + a.epsilon);
      if (lane == 0) a.inv_rms[row * a.heads + h] = r;
    }
    const auto normed = [&](int d) {
      if constexpr (NORM) return to_float(x[d]) * r * (a.weight_offset + to_float(a.weight[d]));
      return to_float(x[d]);
    };
    for (int i = lane; i < a.half; i += warp) {
      const int d = a.first_of(i), e = a.second_of(i);
      const float first = normed(d), second = normed(e), cosine = cosines[i], sine = cosines[a.half + i];
      y[d] = from_float<T>(first * cosine - second * sine);
      y[e] = from_float<T>(second * cosine + first * sine);
    }
    for (int d = 2 * a.half + lane; d < a.head_dim; d += warp) y[d] = from_float<T>(normed(d));
  }
}

template <class T, bool NORM>
__global__ void __launch_bounds__(threads)
    rotary_grad_plain(Span<T> din, Span<const T> dout, Span<const T> in, float* partial, Rotation<T> a) {
  extern __shared__ float sums[];  // dweight of each warp
  const int lane = threadIdx.x % warp;
  float* dweight = sums + threadIdx.x / warp * a.head_dim;
  if constexpr (NORM)
    for (int d = lane; d < a.head_dim; d += warp) dweight[d] = 0;
  __syncwarp();  // other lanes add to these
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const float* cosines = a.cosines(row);
    for (int h = threadIdx.x / warp; h < a.heads; h += threads / warp) {
      const T* dy = dout.head(row, h);
      T* dx = din.head(row, h);
      // d and its partner; one beyond 2 half has none.
      const auto turned = [&](int d) {
        if (d >= 2 * a.half) return to_float(dy[d]);
        const int i = a.neighbours ? d / 2 : d < a.half ? d : d - a.half;
        const float first = to_float(dy[a.first_of(i)]), second = to_float(dy[a.second_of(i)]), cosine = cosines[i],
                    sine = cosines[a.half + i];
        return d == a.first_of(i) ? first * cosine + second * sine : second * cosine - first * sine;
      };
      float r = 0, mean = 0;
      const T* x = nullptr;
      if constexpr (NORM) {
        x = in.head(row, h);
        r = a.inv_rms[row * a.heads + h];
        float dot = 0;
        const auto add = [&](int d) {
          const float g = turned(d), v = to_float(x[d]);
          dweight[d] += g * (v * r);
          dot += g * (a.weight_offset + to_float(a.weight[d])) * v;
        };
        // Each lane adds to the elements that it owns in the loop below.
        for (int i = lane; i < a.half; i += warp) add(a.first_of(i)), add(a.second_of(i));
        for (int d = 2 * a.half + lane; d < a.head_dim; d += warp) add(d);
        mean = warp_sum(dot) * r / static_cast<float>(a.head_dim) * r;
      }
      const auto grad = [&](int d) {
        if constexpr (NORM) return r * (turned(d) * (a.weight_offset + to_float(a.weight[d])) - to_float(x[d]) * mean);
        return turned(d);
      };
      for (int i = lane; i < a.half; i += warp) {
        const float first = grad(a.first_of(i)), second = grad(a.second_of(i));
        dx[a.first_of(i)] = from_float<T>(first);
        dx[a.second_of(i)] = from_float<T>(second);
      }
      for (int d = 2 * a.half + lane; d < a.head_dim; d += warp) dx[d] = from_float<T>(grad(d));
    }
  }
  if constexpr (NORM) {
    __syncthreads();
    for (int d = threadIdx.x; d < a.head_dim; d += threads) {
      float sum = 0;
      for (int i = 0; i < threads / warp; ++i) sum += sums[i * a.head_dim + d];
      partial[static_cast<std::int64_t>(blockIdx.x) * a.head_dim + d] = sum;
    }
  }
}

template <class T>
Rotation<T> rotation_of(const Heads& heads, const Tensor& positions, const Tensor& table, const HeadNorm& norm,
                        RotaryPairs pairs) {
  return {positions.as<std::int32_t>(),
          table.as<float>(),
          table.dim(0),
          static_cast<int>(table.dim(2)),
          static_cast<int>(heads.heads),
          static_cast<int>(heads.head_dim),
          heads.rows.dim(0),
          static_cast<const T*>(norm.weight.data()),
          norm.epsilon,
          norm.weight_offset,
          norm.weight ? norm.inv_rms.as<float>() : nullptr,
          pairs == RotaryPairs::neighbours};
}

template <int G, class T, class F>
void with_heads(const Rotation<T>& a, F&& f) {
  if (a.heads % 2 == 0)
    f.template operator()<G, 2>();
  else
    f.template operator()<G, 1>();
}

// Calls f.operator()<G, HEADS>() if a group of G lanes with packs of N does a head; false if none does.
template <int N, class T, class F>
bool with_group(const Rotation<T>& a, F&& f) {
  if (a.neighbours || a.head_dim != 2 * a.half || a.half % N != 0) return false;
  switch (a.half / N) {
    case 2:
      return with_heads<2>(a, f), true;
    case 4:
      return with_heads<4>(a, f), true;
    case 8:
      return with_heads<8>(a, f), true;
    case 16:
      return with_heads<16>(a, f), true;
    case 32:
      return with_heads<32>(a, f), true;
    default:
      return false;
  }
}

}  // namespace

void CudaOps::rotary(Stream& stream, Heads out, Heads in, Tensor positions, Tensor table, HeadNorm norm,
                     RotaryPairs pairs) {
  const char* op = "rotary";
  expect_compute_dtype(op, "in", in.rows.dtype());
  expect_same_heads(op, "in", in, "out", out);
  expect_rotation(op, in, positions, table, norm);
  SO_CHECK(!norm.weight || in.rows.data() != out.rows.data() || in.offset != out.offset,
           "{}: with a norm, out must not be in: the backward pass reads it", op);
  const cudaStream_t on = enter(stream);
  const std::int64_t rows = in.rows.dim(0);
  if (rows == 0 || in.heads == 0) return;
  with_type(in.rows.dtype(), [&]<class T> {
    const auto a = rotation_of<T>(in, positions, table, norm, pairs);
    const auto to = span_of<T>(out);
    const auto from = span_of<const T>(in);
    constexpr int N = pack_size<T>;
    const unsigned grid = blocks_for(rows, 1);
    const bool packs = heads_aligned<T, N>(in) && heads_aligned<T, N>(out) && rows_aligned<T, N>(N, a.weight) &&
                       rows_aligned<float, N>(a.half, a.table);
    if (packs && with_group<N>(a, [&]<int G, int HEADS> {
          const unsigned blocks = blocks_for(rows * (in.heads / HEADS) * G, threads);
          if (a.weight)
            rotary_packs<T, N, G, HEADS, true, false><<<blocks, threads, 0, on>>>(to, from, a);
          else
            rotary_packs<T, N, G, HEADS, false, false><<<blocks, threads, 0, on>>>(to, from, a);
        }))
      return;
    if (a.weight)
      rotary_plain<T, true><<<grid, threads, 0, on>>>(to, from, a);
    else
      rotary_plain<T, false><<<grid, threads, 0, on>>>(to, from, a);
  });
  SO_CUDA_LAUNCHED(op);
}

void CudaOps::rotary_grad(Stream& stream, const RotaryGrad& g) {
  const char* op = "rotary_grad";
  expect_compute_dtype(op, "dout", g.dout.rows.dtype());
  expect_same_heads(op, "dout", g.dout, "din", g.din);
  expect_rotation(op, g.din, g.positions, g.table, g.norm);
  SO_CHECK(static_cast<bool>(g.norm.weight) == static_cast<bool>(g.dweight), "{}: dweight goes with a norm", op);
  if (g.norm.weight) {
    expect_same_heads(op, "dout", g.dout, "in", g.in);
    expect_gradient(op, "dweight", g.dweight, g.din.rows.dtype(), {g.din.head_dim});
    SO_CHECK(g.din.head_dim <= max_head_dim, "{}: head_dim {} is more than {}", op, g.din.head_dim, max_head_dim);
  }
  const Heads in = g.norm.weight ? g.in : Heads{};  // not read without a norm
  const cudaStream_t on = enter(stream);
  const std::int64_t rows = g.din.rows.dim(0);
  // With a norm, few blocks of many rows, since each leaves a row of dweight's parts.
  constexpr std::int64_t blocks_per_multiprocessor = 4;
  const std::int64_t blocks =
      g.norm.weight ? std::min(rows, blocks_per_multiprocessor * properties_.multiprocessors) : rows;
  float* partial = g.norm.weight ? scratch<float>(static_cast<std::size_t>(blocks * g.din.head_dim)) : nullptr;
  if (rows > 0 && g.din.heads > 0) {
    with_type(g.din.rows.dtype(), [&]<class T> {
      const auto a = rotation_of<T>(g.din, g.positions, g.table, g.norm, g.pairs);
      const auto dx = span_of<T>(g.din);
      const auto dy = span_of<const T>(g.dout), x = span_of<const T>(in);
      constexpr int N = pack_size<T>;
      const unsigned grid = blocks_for(blocks, 1);
      const bool packs = heads_aligned<T, N>(g.din) && heads_aligned<T, N>(g.dout) && heads_aligned<T, N>(in) &&
                         rows_aligned<T, N>(N, a.weight) && rows_aligned<float, N>(a.half, a.table);
      if (packs && with_group<N>(a, [&]<int G, int HEADS> {
            if (a.weight)
              rotary_norm_grad_packs<T, N, G, HEADS><<<grid, threads, 0, on>>>(dx, dy, x, partial, a);
            else
              rotary_packs<T, N, G, HEADS, false, true>
                  <<<blocks_for(rows * (g.din.heads / HEADS) * G, threads), threads, 0, on>>>(dx, dy, a);
          }))
        return;
      const std::size_t shared = threads / warp * sizeof(float) * static_cast<std::size_t>(a.head_dim);
      if (a.weight)
        rotary_grad_plain<T, true><<<grid, threads, shared, on>>>(dx, dy, x, partial, a);
      else
        rotary_grad_plain<T, false><<<grid, threads, 0, on>>>(dx, dy, x, partial, a);
    });
    SO_CUDA_LAUNCHED(op);
  }
  if (g.norm.weight) finish_column_sums(on, g.dweight, partial, blocks, g.din.head_dim, g.dweight_mode);
}

}  // namespace so
