// Self-attention with windows of up to 129 keys on Hopper's matrix units, heads of 64, eight query heads (or a
// multiple) to a key head.
//
// The 64 rows of a product are eight neighbouring queries of eight heads, row 8 h + q. Together they see 136 keys at
// most, 128 before the first one's own and the eight of their own rows, in any one of the heads: a query meets 128 of
// these, so that hardly anything is computed in vain, and all scores of a row fit into registers: there is one maximum,
// one sum and nothing to correct later. A block has a chunk of a document and eight heads; its keys stay in shared
// memory, and its groups of warps take the eights of queries in turn, each on its own, with the next queries on their
// way.
#include "ops/cuda/hopper/attention_tiles.h"

namespace so {
namespace {

using namespace kernel;
using namespace hopper;

constexpr int D = 64, eight = 8, before = 128, columns = before + eight;
constexpr int groups = 2, threads = groups * group_threads, chunk_rows = 128;
static_assert(narrow_forward_heads == eight && narrow_forward_window == before + 1);

struct Shared {
  bf16_t k[(before + chunk_rows) * D];
  bf16_t v[(before + chunk_rows + eight) * D];  // the last are zeros: products go over 16 keys at a time
  bf16_t q[groups][2][part_elements];           // and out
};

// The scores of a group of warps: as Sums, of more columns.
using Scores = float[columns / 2];

// c (+)= a b^T over 16 columns of a and b, both in shared memory.
__device__ inline void multiply_scores(Scores& c, std::uint64_t a, std::uint64_t b, bool add) {
#define SO_FOUR(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %70, 0; wgmma.mma_async.sync.aligned.m64n136k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,"
      "%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67}, %68, %69, p, 1, 1, 0, 0;}"
      : SO_FOUR(0), SO_FOUR(4), SO_FOUR(8), SO_FOUR(12), SO_FOUR(16), SO_FOUR(20), SO_FOUR(24), SO_FOUR(28),
        SO_FOUR(32), SO_FOUR(36), SO_FOUR(40), SO_FOUR(44), SO_FOUR(48), SO_FOUR(52), SO_FOUR(56), SO_FOUR(60),
        SO_FOUR(64)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
#undef SO_FOUR
}

__device__ inline void copy_piece(unsigned to, const bf16_t* from, bool inside) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}

__global__ void __launch_bounds__(threads, 2) attention_forward_narrow_kernel(AttentionArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const int eights = a.heads / eight;
  const Tile tile = find_tile(a, a.cu_q, chunk_rows, static_cast<int>(blockIdx.x) / eights);
  if (!tile.any) return;
  const Document& d = tile.document;
  const int first_head = static_cast<int>(blockIdx.x) % eights * eight, kv_head = first_head / (a.heads / a.kv_heads);
  const int rows = min(chunk_rows, d.q_count - tile.first), steps = (rows + eight - 1) / eight;
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / group_threads, 0);
  const int lane = static_cast<int>(threadIdx.x) % warp, own_warp = static_cast<int>(threadIdx.x) / warp % 4;

  const auto fetch_queries = [&](int step, int stage) {
    const int thread = thread_number() % group_threads;
    const unsigned to = shared_address(shared.q[group][stage]) + thread / 8 % 8 * 1024;
    const bf16_t* const from = rows_of<D>(a.q, d.q_begin + tile.first, first_head) + thread % 64 * 8;
#pragma unroll
    for (int i = 0; i < eight; i += group_threads / 64) {
      const int query = i + thread / 64, row = step * eight + query;
      copy_piece(to + query * 128 + ((thread % 8) ^ query) * 16, from + min(row, rows - 1) * a.q.width, row < rows);
    }
  };
  {
    if (group < steps) fetch_queries(group, 0);
    const int thread = thread_number(), piece = thread % 8;
    const bf16_t* const k = rows_of<D>(a.k, d.k_begin, kv_head) + piece * 8;
    const bf16_t* const v = rows_of<D>(a.v, d.k_begin, kv_head) + piece * 8;
#pragma unroll 4
    for (int row = thread / 8; row < before + chunk_rows + eight; row += threads / 8) {
      const int key = tile.first - before + row;
      const bool inside = key >= 0 && row < before + rows;
      const unsigned at = row * 128 + (piece ^ (row % 8)) * 16;
      if (row < before + chunk_rows)
        copy_piece(shared_address(shared.k) + at, inside ? k + key * a.k.width : k, inside);
      copy_piece(shared_address(shared.v) + at, inside ? v + key * a.v.width : v, inside);
    }
    commit_copies();
    wait_copies<0>();
    publish();
    __syncthreads();
  }

  const float scale = a.scale * log2_e;
  const int query = lane / 4, column = lane % 4 * 2;
  const float sinks[2] = {sink_of<bf16_t>(a, first_head + 2 * own_warp) * log2_e,
                          sink_of<bf16_t>(a, first_head + 2 * own_warp + 1) * log2_e};
  for (int step = group, stage = 0; step < steps; step += groups, stage ^= 1) {
    wait_copies<0>();
    publish();
    group_barrier(group);
    if (step + groups < steps) fetch_queries(step + groups, stage ^ 1);
    commit_copies();

    bf16_t* const q = shared.q[group][stage];
    Scores scores;
    begin_products();
    {
      const std::uint64_t left = descriptor(q), right = descriptor(shared.k + step * eight * D);
#pragma unroll
      for (int k = 0; k < D / 16; ++k) multiply_scores(scores, left + k * column_step, right + k * column_step, k > 0);
    }
    commit_products();
    wait_products<0>();
    settled(scores);

    // The query sees the columns [lowest, before + query].
    const int first = tile.first + step * eight, lowest = max(query + before + 1 - a.window, before - first) - column;
    const auto cut = [&](int n) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (8 * n + i % 2 < lowest) scores[4 * n + i] = -INFINITY;
    };
    cut(0);
    cut(1);
    if (first < before || a.window < before - eight + 1) {
#pragma unroll
      for (int n = 2; n < columns / 8; ++n) cut(n);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (column + i % 2 > query) scores[before / 2 + i] = -INFINITY;

    unsigned probabilities[(columns + 15) / 16][4];
    probabilities[columns / 16][2] = probabilities[columns / 16][3] = 0;
    float base[2], total[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float even = scores[2 * half], odd = scores[2 * half + 1];
#pragma unroll
      for (int n = 1; n < columns / 8; ++n) {
        even = fmaxf(even, scores[4 * n + 2 * half]);
        odd = fmaxf(odd, scores[4 * n + 2 * half + 1]);
      }
      even = fmaxf(even, odd);
      even = fmaxf(even, __shfl_xor_sync(0xffffffffu, even, 1));
      even = fmaxf(even, __shfl_xor_sync(0xffffffffu, even, 2));
      base[half] = fmaxf(even * scale, sinks[half]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float even = 0, odd = 0;
#pragma unroll
      for (int n = 0; n < columns / 8; ++n) {
        const float x = power_of_two(fmaf(scores[4 * n + 2 * half], scale, -base[half])),
                    y = power_of_two(fmaf(scores[4 * n + 2 * half + 1], scale, -base[half]));
        even += x;
        odd += y;
        probabilities[n / 2][n % 2 * 2 + half] = pack(x, y);
      }
      total[half] = even + odd;
    }

    Sums out;
#pragma unroll
    for (auto& part : probabilities)
#pragma unroll
      for (unsigned& x : part) asm volatile("" : "+r"(x)::"memory");
    begin_products();
    {
      const std::uint64_t right = descriptor(shared.v + step * eight * D);
#pragma unroll
      for (int k = 0; k < (columns + 15) / 16; ++k)
        multiply_operand(out, probabilities[k], right + k * row_step, k > 0);
    }
    commit_products();
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = first_head + 2 * own_warp + half;
      float sum = total[half];
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      sum += power_of_two(sinks[half] - base[half]);  // the sink's share
      factor[half] = 1 / sum;
      if (lane % 4 == 0 && step * eight + query < rows)
        *lse_at(a, d, head, first + query) = (base[half] + log2f(sum)) * ln_2;
    }
    wait_products<0>();
    settled(out);

    Operand result;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        result[n / 2][n % 2 * 2 + half] =
            pack(out[4 * n + 2 * half] * factor[half], out[4 * n + 2 * half + 1] * factor[half]);
    group_barrier(group);  // all have multiplied by q
    store_operand(q, result);
    __syncwarp();
    const int thread = thread_number(), half = thread / 8 % 2, piece = thread % 8;
    const int head = thread / warp % 4 * 2 + half;
    const unsigned char* const staged = reinterpret_cast<const unsigned char*>(q) + head * 1024;
    bf16_t* const to = rows_of<D>(a.out, d.q_begin + first, first_head + head) + piece * 8;
#pragma unroll
    for (int i = 0; i < eight; i += 2) {
      const int row = i + thread % warp / 16;
      if (step * eight + row < rows)
        *reinterpret_cast<uint4*>(to + row * a.out.width) =
            *reinterpret_cast<const uint4*>(staged + row * 128 + (piece ^ row) * 16);
    }
  }
}

}  // namespace

void hopper_attention_narrow(cudaStream_t stream, const AttentionArguments& a) {
  SO_CHECK(hopper_attention_takes_narrow_forward(a), "a window of {}, {} heads of {}", a.window, a.heads, a.head_dim);
  SO_CUDA(cudaFuncSetAttribute(attention_forward_narrow_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(Shared)));
  SO_CUDA(cudaFuncSetAttribute(attention_forward_narrow_kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                               cudaSharedmemCarveoutMaxShared));
  const unsigned blocks = blocks_for(most_tiles(a.q_rows, a.documents, chunk_rows) * (a.heads / eight), 1);
  attention_forward_narrow_kernel<<<blocks, threads, sizeof(Shared), stream>>>(a);
  SO_CUDA_LAUNCHED("attention forward_narrow_kernel");
}

}  // namespace so
