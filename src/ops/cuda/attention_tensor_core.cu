// Attention on the tensor cores (mma.sync, sm_80 and later), in tiles. [FlashAttention-2, Dao 2023]
//
// A block owns 64 rows, 16 to a warp, and walks over the other side 32 columns at a time, the next ones on their way
// while it computes. With "rows" the queries and "columns" the keys that is the forward pass and dq; with rows the keys
// and columns the queries, of every head that shares the key head, it is dk and dv. Scores and probabilities stay in
// registers: an accumulator of one product is, once rounded to bf16, an operand of the next.
#include "device/cuda/kernel.h"
#include "ops/cuda/attention_document.h"
#include "ops/cuda/attention_kernels.h"

namespace so {
namespace {

using namespace kernel;
using bf16_t = __nv_bfloat16;

constexpr int threads = 128, rows = 64, columns = 32;
constexpr int row_pieces = 2;  // accumulator rows of a lane: lane / 4 and 8 more
constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

// Rows in shared memory are eight elements longer than they need to be, which puts the eight rows that a matrix load
// touches into different banks.
template <int D>
inline constexpr int stride = D + 8;

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

__device__ inline void load_matrices(unsigned (&to)[4], const bf16_t* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(from)));
}
__device__ inline void load_matrices_transposed(unsigned (&to)[4], const bf16_t* from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(from)));
}
// c += a b, 16 x 16 times 16 x 8. Element i of c is at row lane / 4 + 8 (i / 2), column 2 (lane % 4) + i % 2.
__device__ inline void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copies `count` of ROWS rows of head_dim elements into shared memory, in the background; the rest becomes zeros.
template <int D, int ROWS>
__device__ inline void copy_tile(bf16_t* to, const bf16_t* from, std::int64_t width, int count, int head_dim) {
  constexpr int pieces = D / 8;
  for (int i = threadIdx.x; i < ROWS * pieces; i += threads) {
    const int row = i / pieces, d = i % pieces * 8;
    const bool inside = row < count && d < head_dim;
    const bf16_t* source = inside ? from + row * width + d : from;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to + row * stride<D> + d)),
                 "l"(source), "r"(inside ? 16 : 0));
  }
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;"); }
// Waits for all copies but those of the last `N` commits.
template <int N>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

using Scores = float[columns / 8][4];
using Operand = unsigned[columns / 16][4];

// scores = a b^T: the warp's 16 rows of a with all columns.
template <int D>
__device__ inline void row_products(Scores& scores, const bf16_t* a, const bf16_t* b) {
  const int lane = threadIdx.x % warp;
#pragma unroll
  for (auto& tile : scores)
#pragma unroll
    for (float& x : tile) x = 0;
  const bf16_t* a_lane = a + (lane % 16) * stride<D> + lane / 16 * 8;
  const bf16_t* b_lane = b + (lane % 8 + lane / 16 * 8) * stride<D> + lane / 8 % 2 * 8;
#pragma unroll
  for (int k = 0; k < D; k += 16) {
    unsigned left[4], right[4];
    load_matrices(left, a_lane + k);
#pragma unroll
    for (int n = 0; n < columns / 16; ++n) {
      load_matrices(right, b_lane + n * 16 * stride<D> + k);
      multiply(scores[2 * n], left, right[0], right[1]);
      multiply(scores[2 * n + 1], left, right[2], right[3]);
    }
  }
}

// Rounds scores to bf16, as the left operand of a product over the columns.
__device__ inline void to_operand(Operand& to, const Scores& from) {
  const auto pair = [](float x, float y) {
    const __nv_bfloat162 p = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<const unsigned*>(&p);
  };
#pragma unroll
  for (int c = 0; c < columns / 16; ++c) {
    to[c][0] = pair(from[2 * c][0], from[2 * c][1]);
    to[c][1] = pair(from[2 * c][2], from[2 * c][3]);
    to[c][2] = pair(from[2 * c + 1][0], from[2 * c + 1][1]);
    to[c][3] = pair(from[2 * c + 1][2], from[2 * c + 1][3]);
  }
}

// sums += a b: WIDTH dimensions from b's element d on.
template <int D, int WIDTH>
__device__ inline void add_products(float (&sums)[WIDTH / 8][4], const Operand& a, const bf16_t* b) {
  const int lane = threadIdx.x % warp;
  const bf16_t* b_lane = b + (lane % 16) * stride<D> + lane / 16 * 8;
#pragma unroll
  for (int c = 0; c < columns / 16; ++c)
#pragma unroll
    for (int n = 0; n < WIDTH / 16; ++n) {
      unsigned right[4];
      load_matrices_transposed(right, b_lane + c * 16 * stride<D> + n * 16);
      multiply(sums[2 * n], a[c], right[0], right[1]);
      multiply(sums[2 * n + 1], a[c], right[2], right[3]);
    }
}

// Writes the warp's rows, row r times factor[r's piece], through its own rows of shared memory so that memory is
// written 16 bytes at a time. `count` rows and `width` dimensions are there to be written.
template <int D, int WIDTH>
__device__ inline void store_rows(bf16_t* to, std::int64_t to_width, bf16_t* shared, const float (&sums)[WIDTH / 8][4],
                                  const float (&factor)[row_pieces], int count, int width) {
  const int lane = threadIdx.x % warp;
  __syncwarp();
#pragma unroll
  for (int n = 0; n < WIDTH / 8; ++n)
#pragma unroll
    for (int piece = 0; piece < row_pieces; ++piece)
      *reinterpret_cast<__nv_bfloat162*>(shared + (lane / 4 + 8 * piece) * stride<D> + n * 8 + lane % 4 * 2) =
          __floats2bfloat162_rn(sums[n][2 * piece] * factor[piece], sums[n][2 * piece + 1] * factor[piece]);
  __syncwarp();
  for (int i = lane; i < 16 * (WIDTH / 8); i += warp) {
    const int row = i / (WIDTH / 8), d = i % (WIDTH / 8) * 8;
    if (row < count && d < width)
      *reinterpret_cast<uint4*>(to + row * to_width + d) =
          *reinterpret_cast<const uint4*>(shared + row * stride<D> + d);
  }
  __syncwarp();
}

__device__ inline const bf16_t* head_rows(const HeadsView& view, std::int64_t row, int head, int head_dim) {
  return static_cast<const bf16_t*>(view.at) + row * view.width + static_cast<std::int64_t>(head) * head_dim;
}
__device__ inline bf16_t* head_rows_out(const HeadsView& view, std::int64_t row, int head, int head_dim) {
  return static_cast<bf16_t*>(view.at) + row * view.width + static_cast<std::int64_t>(head) * head_dim;
}

// Shared memory: two row tiles (the forward pass needs one), two column tiles twice over, and what columns carry.
template <int D>
struct Shared {
  bf16_t row_a[rows * stride<D>], row_b[rows * stride<D>];
  bf16_t column_a[2][columns * stride<D>], column_b[2][columns * stride<D>];
  float column_lse[2][columns], column_delta[2][columns];
};

// --- forward: grid (tiles of queries, heads) ---

template <int D>
__global__ void __launch_bounds__(threads) forward_kernel(AttentionArguments a) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<D>*>(memory);
  const Tile tile = find_tile(a, a.cu_q, rows, static_cast<int>(blockIdx.x));
  if (!tile.any) return;
  const Document d = tile.document;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / (a.heads / a.kv_heads), dim = a.head_dim;
  const int lane = threadIdx.x % warp, first = tile.first + static_cast<int>(threadIdx.x) / warp * 16;
  const int first_key = d.first(tile.first), keys = d.visible(min(tile.first + rows, d.q_count) - 1) - first_key;
  const int steps = (keys + columns - 1) / columns;

  copy_tile<D, rows>(shared.row_a, head_rows(a.q, d.q_begin + tile.first, head, dim), a.q.width, d.q_count - tile.first,
                     dim);
  const auto fetch = [&](int step) {
    const int begin = first_key + step * columns, to = step % 2;
    copy_tile<D, columns>(shared.column_a[to], head_rows(a.k, d.k_begin + begin, kv_head, dim), a.k.width,
                          d.k_count - begin, dim);
    copy_tile<D, columns>(shared.column_b[to], head_rows(a.v, d.k_begin + begin, kv_head, dim), a.v.width,
                          d.k_count - begin, dim);
  };
  if (steps > 0) fetch(0);
  commit_copies();

  bf16_t* const own_rows = shared.row_a + (first - tile.first) * stride<D>;
  const float scale = a.scale * log2_e;
  int seen[row_pieces], unseen[row_pieces];
  float largest[row_pieces], total[row_pieces], sums[D / 8][4];
#pragma unroll
  for (int piece = 0; piece < row_pieces; ++piece) {
    seen[piece] = d.visible(first + lane / 4 + 8 * piece);
    unseen[piece] = d.first(first + lane / 4 + 8 * piece);
    largest[piece] = -INFINITY;
    total[piece] = 0;
  }
#pragma unroll
  for (auto& column : sums)
#pragma unroll
    for (float& x : column) x = 0;

  // The keys that any of the warp's rows sees.
  const int warp_first = d.first(first), warp_end = first < d.q_count ? d.visible(min(first + 15, d.q_count - 1)) : 0;
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) fetch(step + 1);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    const int begin = first_key + step * columns;
    if (begin < warp_end && begin + columns > warp_first) {
      Scores scores;
      row_products<D>(scores, own_rows, shared.column_a[step % 2]);
      const int column = begin + lane % 4 * 2;
#pragma unroll
      for (int piece = 0; piece < row_pieces; ++piece) {
        float now = largest[piece];
#pragma unroll
        for (int n = 0; n < columns / 8; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& s = scores[n][2 * piece + i];
            const int key = column + n * 8 + i;
            s = key >= unseen[piece] && key < seen[piece] ? s * scale : -INFINITY;
            now = fmaxf(now, s);
          }
        now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
        now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
        const float base = now == -INFINITY ? 0.0f : now;  // nothing seen so far
        const float shrink = exp2f(largest[piece] - base);
        largest[piece] = now;
        total[piece] *= shrink;
#pragma unroll
        for (int n = 0; n < columns / 8; ++n)
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& s = scores[n][2 * piece + i];
            s = exp2f(s - base);
            total[piece] += s;
          }
#pragma unroll
        for (auto& values : sums) {
          values[2 * piece] *= shrink;
          values[2 * piece + 1] *= shrink;
        }
      }
      Operand probabilities;
      to_operand(probabilities, scores);
      add_products<D, D>(sums, probabilities, shared.column_b[step % 2]);
    }
    __syncthreads();
  }
  wait_copies<0>();
  __syncthreads();

  // The sink's share of the softmax comes last.
  const float sink = sink_of<bf16_t>(a, head) * log2_e;
  float inverse[row_pieces];
#pragma unroll
  for (int piece = 0; piece < row_pieces; ++piece) {
    total[piece] += __shfl_xor_sync(0xffffffffu, total[piece], 1);
    total[piece] += __shfl_xor_sync(0xffffffffu, total[piece], 2);
    const bool blind = seen[piece] == 0;
    const float highest = fmaxf(largest[piece], sink), base = highest == -INFINITY ? 0.0f : highest;
    const float share = exp2f(largest[piece] - base), sum = share * total[piece] + exp2f(sink - base);
    inverse[piece] = blind ? 0.0f : share / sum;
    const int row = first + lane / 4 + 8 * piece;
    if (lane % 4 == 0 && row < d.q_count) *lse_at(a, d, head, row) = (blind ? sink : highest + log2f(sum)) * ln_2;
  }
  store_rows<D, D>(head_rows_out(a.out, d.q_begin + first, head, dim), a.out.width, own_rows, sums, inverse,
                   d.q_count - first, dim);
}

// --- dq: grid (tiles of queries, heads) ---
// With S = scale q k^T, P = exp(S - lse), delta = rowsum(dout out), dS = P (dout v^T - delta):  dq = scale dS k.

template <int D>
__global__ void __launch_bounds__(threads) grad_query_kernel(AttentionArguments a) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<D>*>(memory);
  const Tile tile = find_tile(a, a.cu_q, rows, static_cast<int>(blockIdx.x));
  if (!tile.any) return;
  const Document d = tile.document;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / (a.heads / a.kv_heads), dim = a.head_dim;
  const int lane = threadIdx.x % warp, first = tile.first + static_cast<int>(threadIdx.x) / warp * 16;
  const int first_key = d.first(tile.first), keys = d.visible(min(tile.first + rows, d.q_count) - 1) - first_key;
  const int steps = (keys + columns - 1) / columns;

  copy_tile<D, rows>(shared.row_a, head_rows(a.q, d.q_begin + tile.first, head, dim), a.q.width, d.q_count - tile.first,
                     dim);
  copy_tile<D, rows>(shared.row_b, head_rows(a.dout, d.q_begin + tile.first, head, dim), a.dout.width,
                     d.q_count - tile.first, dim);
  const auto fetch = [&](int step) {
    const int begin = first_key + step * columns, to = step % 2;
    copy_tile<D, columns>(shared.column_a[to], head_rows(a.k, d.k_begin + begin, kv_head, dim), a.k.width,
                          d.k_count - begin, dim);
    copy_tile<D, columns>(shared.column_b[to], head_rows(a.v, d.k_begin + begin, kv_head, dim), a.v.width,
                          d.k_count - begin, dim);
  };
  if (steps > 0) fetch(0);
  commit_copies();

  const int own = (first - tile.first) * stride<D>;
  const float scale = a.scale * log2_e;
  int seen[row_pieces], unseen[row_pieces];
  float lse[row_pieces], delta[row_pieces], sums[D / 8][4];
#pragma unroll
  for (int piece = 0; piece < row_pieces; ++piece) {
    const int row = first + lane / 4 + 8 * piece;
    const bool inside = row < d.q_count;
    seen[piece] = inside ? d.visible(row) : 0;
    unseen[piece] = d.first(row);
    lse[piece] = inside ? *lse_at(a, d, head, row) * log2_e : 0;
    delta[piece] = inside ? *delta_at(a, d, head, row) : 0;
  }
#pragma unroll
  for (auto& column : sums)
#pragma unroll
    for (float& x : column) x = 0;

  const int warp_first = d.first(first), warp_end = first < d.q_count ? d.visible(min(first + 15, d.q_count - 1)) : 0;
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) fetch(step + 1);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    const int begin = first_key + step * columns;
    if (begin < warp_end && begin + columns > warp_first) {
      Scores scores, gradients;
      row_products<D>(scores, shared.row_a + own, shared.column_a[step % 2]);
      row_products<D>(gradients, shared.row_b + own, shared.column_b[step % 2]);
      const int column = begin + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < columns / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int piece = i / 2, key = column + n * 8 + i % 2;
          const float p = exp2f(scores[n][i] * scale - lse[piece]);
          scores[n][i] = key >= unseen[piece] && key < seen[piece] ? p * (gradients[n][i] - delta[piece]) : 0.0f;
        }
      Operand operand;
      to_operand(operand, scores);
      add_products<D, D>(sums, operand, shared.column_a[step % 2]);
    }
    __syncthreads();
  }
  wait_copies<0>();
  __syncthreads();
  const float factor[row_pieces] = {a.scale, a.scale};
  store_rows<D, D>(head_rows_out(a.dq, d.q_begin + first, head, dim), a.dq.width, shared.row_a + own, sums, factor,
                   d.q_count - first, dim);
}

// --- dk and dv: grid (tiles of keys, key heads, parts of WIDTH dimensions) ---
// dv = P^T dout,  dk = scale dS^T q, over the heads that share the key head. Beyond 128 dimensions the two sums do not
// fit into registers, and the parts compute the scores each for itself.

template <int D, int WIDTH>
__global__ void __launch_bounds__(threads) grad_key_value_kernel(AttentionArguments a) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<D>*>(memory);
  const Tile tile = find_tile(a, a.cu_k, rows, static_cast<int>(blockIdx.x));
  if (!tile.any) return;
  const Document d = tile.document;
  const int group = a.heads / a.kv_heads, kv_head = static_cast<int>(blockIdx.y), dim = a.head_dim;
  const int part = static_cast<int>(blockIdx.z) * WIDTH;
  const int lane = threadIdx.x % warp, first = tile.first + static_cast<int>(threadIdx.x) / warp * 16;
  const int shift = d.k_count - d.q_count;  // query i sees keys up to i + shift
  const int first_step = d.first_query(tile.first) / columns, past_query = d.past_query(tile.first + rows);
  const int head_steps = max((past_query + columns - 1) / columns - first_step, 0), steps = group * head_steps;

  copy_tile<D, rows>(shared.row_a, head_rows(a.k, d.k_begin + tile.first, kv_head, dim), a.k.width,
                     d.k_count - tile.first, dim);
  copy_tile<D, rows>(shared.row_b, head_rows(a.v, d.k_begin + tile.first, kv_head, dim), a.v.width,
                     d.k_count - tile.first, dim);
  const auto fetch = [&](int step) {
    const int head = kv_head * group + step / head_steps, begin = (first_step + step % head_steps) * columns;
    const int to = step % 2;
    copy_tile<D, columns>(shared.column_a[to], head_rows(a.q, d.q_begin + begin, head, dim), a.q.width,
                          d.q_count - begin, dim);
    copy_tile<D, columns>(shared.column_b[to], head_rows(a.dout, d.q_begin + begin, head, dim), a.dout.width,
                          d.q_count - begin, dim);
    const int row = begin + static_cast<int>(threadIdx.x);
    if (threadIdx.x < columns) {
      const bool inside = row < d.q_count;
      shared.column_lse[to][threadIdx.x] = inside ? *lse_at(a, d, head, row) * log2_e : 0;
      shared.column_delta[to][threadIdx.x] = inside ? *delta_at(a, d, head, row) : 0;
    }
  };
  if (steps > 0) fetch(0);
  commit_copies();

  const int own = (first - tile.first) * stride<D>;
  const float scale = a.scale * log2_e;
  float dk[WIDTH / 8][4], dv[WIDTH / 8][4];
#pragma unroll
  for (int n = 0; n < WIDTH / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) dk[n][i] = dv[n][i] = 0;

  // The queries that see any of the warp's keys.
  const int warp_first = d.first_query(first), warp_end = first < d.k_count ? d.past_query(first + 16) : 0;
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) fetch(step + 1);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    const int now = step % 2, begin = (first_step + step % head_steps) * columns;
    if (begin < warp_end && begin + columns > warp_first) {
      Scores scores, gradients;
      row_products<D>(scores, shared.row_a + own, shared.column_a[now]);
      row_products<D>(gradients, shared.row_b + own, shared.column_b[now]);
#pragma unroll
      for (int n = 0; n < columns / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = n * 8 + lane % 4 * 2 + i % 2, query = begin + column;
          const int key = first + lane / 4 + i / 2 * 8;
          const bool sees = query < d.q_count && key <= query + shift && key > query + shift - d.window;
          const float p = exp2f(scores[n][i] * scale - shared.column_lse[now][column]);
          gradients[n][i] = sees ? p * (gradients[n][i] - shared.column_delta[now][column]) : 0.0f;
          scores[n][i] = sees ? p : 0.0f;
        }
      Operand operand;
      to_operand(operand, scores);
      add_products<D, WIDTH>(dv, operand, shared.column_b[now] + part);
      to_operand(operand, gradients);
      add_products<D, WIDTH>(dk, operand, shared.column_a[now] + part);
    }
    __syncthreads();
  }
  wait_copies<0>();
  __syncthreads();
  const float one[row_pieces] = {1, 1}, factor[row_pieces] = {a.scale, a.scale};
  const std::int64_t row = d.k_begin + first;
  store_rows<D, WIDTH>(head_rows_out(a.dv, row, kv_head, dim) + part, a.dv.width, shared.row_b + own, dv, one,
                       d.k_count - first, dim - part);
  store_rows<D, WIDTH>(head_rows_out(a.dk, row, kv_head, dim) + part, a.dk.width, shared.row_a + own, dk, factor,
                       d.k_count - first, dim - part);
}

// Calls f with the number of dimensions that kernels are compiled for and that head_dim fits into, and how many of them
// a block of grad_key_value_kernel sums.
template <class F>
void with_dimensions(int head_dim, F&& f) {
  if (head_dim <= 64) return f.template operator()<64, 64>();
  if (head_dim <= 96) return f.template operator()<96, 96>();
  if (head_dim <= 128) return f.template operator()<128, 128>();
  if (head_dim <= 192) return f.template operator()<192, 96>();
  return f.template operator()<256, 128>();
}

template <int D, class Kernel>
void launch(Kernel* kernel, const char* name, dim3 grid, cudaStream_t stream, const AttentionArguments& a) {
  constexpr int bytes = sizeof(Shared<D>);
  SO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<grid, threads, bytes, stream>>>(a);
  SO_CUDA_LAUNCHED(name);
}

unsigned tile_blocks(std::int64_t total_rows, int documents) {
  return blocks_for(most_tiles(total_rows, documents, rows), 1);
}

}  // namespace

bool tensor_core_attention_takes(int head_dim, std::int64_t shared_memory) {
  if (head_dim % 8 != 0 || head_dim > max_tensor_core_head_dim) return false;
  bool fits = false;
  with_dimensions(head_dim,
                  [&]<int D, int>() { fits = static_cast<std::int64_t>(sizeof(Shared<D>)) <= shared_memory; });
  return fits;
}

void tensor_core_attention(cudaStream_t stream, const AttentionArguments& a) {
  const dim3 grid(tile_blocks(a.q_rows, a.documents), static_cast<unsigned>(a.heads));
  with_dimensions(a.head_dim,
                  [&]<int D, int>() { launch<D>(forward_kernel<D>, "attention forward_kernel", grid, stream, a); });
}

void tensor_core_attention_grad(cudaStream_t stream, const AttentionArguments& a) {
  const unsigned q_tiles = tile_blocks(a.q_rows, a.documents), k_tiles = tile_blocks(a.k_rows, a.documents);
  with_dimensions(a.head_dim, [&]<int D, int WIDTH>() {
    launch<D>(grad_query_kernel<D>, "attention grad_query_kernel", dim3(q_tiles, static_cast<unsigned>(a.heads)),
              stream, a);
    const auto parts = static_cast<unsigned>((a.head_dim + WIDTH - 1) / WIDTH);
    launch<D>(grad_key_value_kernel<D, WIDTH>, "attention grad_key_value_kernel",
              dim3(k_tiles, static_cast<unsigned>(a.kv_heads), parts), stream, a);
  });
}

}  // namespace so
