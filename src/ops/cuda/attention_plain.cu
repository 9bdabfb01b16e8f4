// Attention in plain fp32 arithmetic, for fp32 data and for any head dimension up to 512. Right and deterministic
// first: the fp32 path serves comparison with other implementations, not speed.
//
// A block owns ROWS rows, LANES threads to a row, and walks over the other side ROWS at a time. A thread computes every
// LANES-th score of its row and every LANES-th dimension of its row's sums. All threads of a row are in one warp.
#include "device/cuda/kernel.h"
#include "ops/cuda/attention_document.h"
#include "ops/cuda/attention_kernels.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 128;

// For head dimensions up to DIM; with half the rows of twice the length shared memory stays the same. Heads of 512 have
// more threads to a row than a tile has scores of it.
template <int DIM>
struct Cut {
  static constexpr int rows = 4096 / DIM, lanes = threads / rows, dims = DIM / lanes;
  static constexpr int scores = (rows + lanes - 1) / lanes;
  // Whether the tile has this row.
  __device__ static bool has(int row) { return lanes <= rows || row < rows; }
};

__device__ inline int row_in_block(int lanes) { return static_cast<int>(threadIdx.x) / lanes; }
__device__ inline int lane_in_row(int lanes) { return static_cast<int>(threadIdx.x) % lanes; }

template <class T>
__device__ inline T* head_rows(const HeadsView& view, std::int64_t row, int head, int head_dim) {
  return static_cast<T*>(view.at) + row * view.width + static_cast<std::int64_t>(head) * head_dim;
}

// Rows [first, first + ROWS) of a head as fp32, an odd number of elements apart; zeros beyond `count` rows.
template <class T, int ROWS>
__device__ inline void read_rows(float* to, int pitch, const HeadsView& view, std::int64_t row, int head, int head_dim,
                                 int count) {
  const T* from = head_rows<T>(view, row, head, head_dim);
  for (int i = threadIdx.x; i < ROWS * head_dim; i += threads) {
    const int r = i / head_dim, d = i % head_dim;
    to[r * pitch + d] = r < count ? to_float(from[r * view.width + d]) : 0.0f;
  }
}

__device__ inline float dot(const float* a, const float* b, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum = fmaf(a[i], b[i], sum);
  return sum;
}

// Over the threads of a row.
template <int LANES>
__device__ inline float row_max(float x) {
#pragma unroll
  for (int lane = LANES / 2; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
  return x;
}

template <class T, int DIM>
__global__ void __launch_bounds__(threads) forward_kernel(AttentionArguments a) {
  using C = Cut<DIM>;
  extern __shared__ float memory[];
  const Tile tile = find_tile(a, a.cu_q, C::rows, static_cast<int>(blockIdx.x));
  if (!tile.any) return;
  const Document d = tile.document;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / (a.heads / a.kv_heads), dim = a.head_dim;
  const int pitch = dim | 1, r = row_in_block(C::lanes), lane = lane_in_row(C::lanes), row = tile.first + r;
  float* const qs = memory;
  float* const ks = qs + C::rows * pitch;
  float* const vs = ks + C::rows * pitch;
  float* const ps = vs + C::rows * pitch + r * (C::rows + 1);  // of this row

  read_rows<T, C::rows>(qs, pitch, a.q, d.q_begin + tile.first, head, dim, d.q_count - tile.first);
  const int seen = row < d.q_count ? d.visible(row) : 0, unseen = d.first(row);
  const int keys = d.visible(min(tile.first + C::rows, d.q_count) - 1);
  float largest = -INFINITY, total = 0, sums[C::dims] = {};
  for (int begin = d.first(tile.first); begin < keys; begin += C::rows) {
    __syncthreads();
    read_rows<T, C::rows>(ks, pitch, a.k, d.k_begin + begin, kv_head, dim, d.k_count - begin);
    read_rows<T, C::rows>(vs, pitch, a.v, d.k_begin + begin, kv_head, dim, d.k_count - begin);
    __syncthreads();
    float scores[C::scores], now = largest;
#pragma unroll
    for (int i = 0; i < C::scores; ++i) {
      const int j = lane + i * C::lanes;
      scores[i] = C::has(j) && begin + j >= unseen && begin + j < seen
                      ? a.scale * dot(qs + r * pitch, ks + j * pitch, dim)
                      : -INFINITY;
      now = fmaxf(now, scores[i]);
    }
    now = row_max<C::lanes>(now);
    const float base = now == -INFINITY ? 0.0f : now, shrink = expf(largest - base);
    largest = now;
    total *= shrink;
#pragma unroll
    for (int i = 0; i < C::scores; ++i) {
      const float p = expf(scores[i] - base);
      total += p;
      if (C::has(lane + i * C::lanes)) ps[lane + i * C::lanes] = p;
    }
    __syncwarp();
#pragma unroll
    for (int c = 0; c < C::dims; ++c) {
      sums[c] *= shrink;
      const int at = lane + c * C::lanes;
      if (at < dim)
        for (int j = 0; j < C::rows; ++j) sums[c] = fmaf(ps[j], vs[j * pitch + at], sums[c]);
    }
  }
  total = group_sum<C::lanes>(total);
  if (row >= d.q_count) return;
  // The sink's share of the softmax comes last.
  const float sink = sink_of<T>(a, head), highest = fmaxf(largest, sink), base = highest == -INFINITY ? 0.0f : highest;
  const float share = expf(largest - base), sum = share * total + expf(sink - base);
  const float inverse = seen == 0 ? 0.0f : share / sum;
  T* const out = head_rows<T>(a.out, d.q_begin + row, head, dim);
#pragma unroll
  for (int c = 0; c < C::dims; ++c)
    if (lane + c * C::lanes < dim) out[lane + c * C::lanes] = from_float<T>(sums[c] * inverse);
  if (lane == 0) *lse_at(a, d, head, row) = seen == 0 ? sink : highest + logf(sum);
}

// The formulas are those of attention_tensor_core.cu.
template <class T, int DIM>
__global__ void __launch_bounds__(threads) grad_query_kernel(AttentionArguments a) {
  using C = Cut<DIM>;
  extern __shared__ float memory[];
  const Tile tile = find_tile(a, a.cu_q, C::rows, static_cast<int>(blockIdx.x));
  if (!tile.any) return;
  const Document d = tile.document;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / (a.heads / a.kv_heads), dim = a.head_dim;
  const int pitch = dim | 1, r = row_in_block(C::lanes), lane = lane_in_row(C::lanes), row = tile.first + r;
  float* const qs = memory;
  float* const gs = qs + C::rows * pitch;
  float* const ks = gs + C::rows * pitch;
  float* const vs = ks + C::rows * pitch;
  float* const ds = vs + C::rows * pitch + r * (C::rows + 1);

  read_rows<T, C::rows>(qs, pitch, a.q, d.q_begin + tile.first, head, dim, d.q_count - tile.first);
  read_rows<T, C::rows>(gs, pitch, a.dout, d.q_begin + tile.first, head, dim, d.q_count - tile.first);
  const bool inside = row < d.q_count;
  const int seen = inside ? d.visible(row) : 0, unseen = d.first(row);
  const int keys = d.visible(min(tile.first + C::rows, d.q_count) - 1);
  const float lse = inside ? *lse_at(a, d, head, row) : 0.0f, delta = inside ? *delta_at(a, d, head, row) : 0.0f;
  float sums[C::dims] = {};
  for (int begin = d.first(tile.first); begin < keys; begin += C::rows) {
    __syncthreads();
    read_rows<T, C::rows>(ks, pitch, a.k, d.k_begin + begin, kv_head, dim, d.k_count - begin);
    read_rows<T, C::rows>(vs, pitch, a.v, d.k_begin + begin, kv_head, dim, d.k_count - begin);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < C::scores; ++i) {
      const int j = lane + i * C::lanes;
      if (!C::has(j)) break;
      float value = 0;
      if (begin + j >= unseen && begin + j < seen) {
        const float p = expf(a.scale * dot(qs + r * pitch, ks + j * pitch, dim) - lse);
        value = p * (dot(gs + r * pitch, vs + j * pitch, dim) - delta);
      }
      ds[j] = value;
    }
    __syncwarp();
#pragma unroll
    for (int c = 0; c < C::dims; ++c) {
      const int at = lane + c * C::lanes;
      if (at < dim)
        for (int j = 0; j < C::rows; ++j) sums[c] = fmaf(ds[j], ks[j * pitch + at], sums[c]);
    }
  }
  if (!inside) return;
  T* const dq = head_rows<T>(a.dq, d.q_begin + row, head, dim);
#pragma unroll
  for (int c = 0; c < C::dims; ++c)
    if (lane + c * C::lanes < dim) dq[lane + c * C::lanes] = from_float<T>(a.scale * sums[c]);
}

template <class T, int DIM>
__global__ void __launch_bounds__(threads) grad_key_value_kernel(AttentionArguments a) {
  using C = Cut<DIM>;
  extern __shared__ float memory[];
  const Tile tile = find_tile(a, a.cu_k, C::rows, static_cast<int>(blockIdx.x));
  if (!tile.any) return;
  const Document d = tile.document;
  const int group = a.heads / a.kv_heads, kv_head = static_cast<int>(blockIdx.y), dim = a.head_dim;
  const int pitch = dim | 1, r = row_in_block(C::lanes), lane = lane_in_row(C::lanes), key = tile.first + r;
  float* const ks = memory;
  float* const vs = ks + C::rows * pitch;
  float* const qs = vs + C::rows * pitch;
  float* const gs = qs + C::rows * pitch;
  float* const ps = gs + C::rows * pitch + r * (C::rows + 1);
  float* const ds = ps + C::rows * (C::rows + 1);

  read_rows<T, C::rows>(ks, pitch, a.k, d.k_begin + tile.first, kv_head, dim, d.k_count - tile.first);
  read_rows<T, C::rows>(vs, pitch, a.v, d.k_begin + tile.first, kv_head, dim, d.k_count - tile.first);
  const int shift = d.k_count - d.q_count;  // query i sees keys to i + shift
  const int first_query = d.first_query(tile.first), past_query = d.past_query(tile.first + C::rows);
  float dk[C::dims] = {}, dv[C::dims] = {};
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head)
    for (int begin = first_query; begin < past_query; begin += C::rows) {
      __syncthreads();
      read_rows<T, C::rows>(qs, pitch, a.q, d.q_begin + begin, head, dim, d.q_count - begin);
      read_rows<T, C::rows>(gs, pitch, a.dout, d.q_begin + begin, head, dim, d.q_count - begin);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < C::scores; ++i) {
        const int j = lane + i * C::lanes, query = begin + j;
        if (!C::has(j)) break;
        float p = 0, value = 0;
        if (query < d.q_count && key < d.k_count && key <= query + shift && key > query + shift - d.window) {
          p = expf(a.scale * dot(qs + j * pitch, ks + r * pitch, dim) - *lse_at(a, d, head, query));
          value = p * (dot(gs + j * pitch, vs + r * pitch, dim) - *delta_at(a, d, head, query));
        }
        ps[j] = p;
        ds[j] = value;
      }
      __syncwarp();
#pragma unroll
      for (int c = 0; c < C::dims; ++c) {
        const int at = lane + c * C::lanes;
        if (at < dim)
          for (int j = 0; j < C::rows; ++j) {
            dk[c] = fmaf(ds[j], qs[j * pitch + at], dk[c]);
            dv[c] = fmaf(ps[j], gs[j * pitch + at], dv[c]);
          }
      }
    }
  if (key >= d.k_count) return;
  T* const dk_row = head_rows<T>(a.dk, d.k_begin + key, kv_head, dim);
  T* const dv_row = head_rows<T>(a.dv, d.k_begin + key, kv_head, dim);
#pragma unroll
  for (int c = 0; c < C::dims; ++c) {
    const int at = lane + c * C::lanes;
    if (at >= dim) continue;
    dk_row[at] = from_float<T>(a.scale * dk[c]);
    dv_row[at] = from_float<T>(dv[c]);
  }
}

template <class F>
void with_cut(DType dtype, int head_dim, F&& f) {
  with_type(dtype, [&]<class T>() {
    if (head_dim <= 128)
      f.template operator()<T, 128>();
    else if (head_dim <= 256)
      f.template operator()<T, 256>();
    else
      f.template operator()<T, 512>();
  });
}

// `row_tiles` tiles of rows and `square_tiles` of scores in shared memory.
template <int DIM, class Kernel>
void launch(Kernel* kernel, const char* name, std::int64_t total_rows, int heads, int row_tiles, int square_tiles,
            cudaStream_t stream, const AttentionArguments& a) {
  using C = Cut<DIM>;
  const int bytes = 4 * (row_tiles * C::rows * (a.head_dim | 1) + square_tiles * C::rows * (C::rows + 1));
  SO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const dim3 grid(blocks_for(most_tiles(total_rows, a.documents, C::rows), 1), static_cast<unsigned>(heads));
  kernel<<<grid, threads, static_cast<std::size_t>(bytes), stream>>>(a);
  SO_CUDA_LAUNCHED(name);
}

}  // namespace

void plain_attention(cudaStream_t stream, DType dtype, const AttentionArguments& a) {
  with_cut(dtype, a.head_dim, [&]<class T, int DIM>() {
    launch<DIM>(forward_kernel<T, DIM>, "plain attention forward_kernel", a.q_rows, a.heads, 3, 1, stream, a);
  });
}

void plain_attention_grad(cudaStream_t stream, DType dtype, const AttentionArguments& a) {
  with_cut(dtype, a.head_dim, [&]<class T, int DIM>() {
    launch<DIM>(grad_query_kernel<T, DIM>, "plain attention grad_query_kernel", a.q_rows, a.heads, 4, 1, stream, a);
    launch<DIM>(grad_key_value_kernel<T, DIM>, "plain attention grad_key_value_kernel", a.k_rows, a.kv_heads, 4, 2,
                stream, a);
  });
}

}  // namespace so
