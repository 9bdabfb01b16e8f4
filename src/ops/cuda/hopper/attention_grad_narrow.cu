// The gradient of self-attention with windows of up to 129 keys and heads of 64, on Hopper's matrix units, with each
// score computed once (attention_grad.cu computes them twice, for any window).
//
// A block has a chunk of a document, tiles of 64 keys and the queries of the same rows, and a key head. It goes over
// the tiles of queries and, for each, over the query heads that share the key head. A tile of queries meets the tile of
// keys of its own rows and at most the two before, and each of the three groups of warps has one of these: it computes
// S^T and dS^T of it, adds to dv and dk, which stay in its registers over all heads and three tiles of queries, and
// leaves dS in shared memory. One group in turn makes dq of all three while the next tile's scores are on their way.
// Tiles of keys before the chunk are computed for dq alone, tiles of queries after it for dk and dv alone.
#include <algorithm>

#include "ops/cuda/hopper/attention_tiles.h"

namespace so {
namespace {

using namespace kernel;
using namespace hopper;

constexpr int groups = 3, threads = groups * group_threads, stages = 3, key_slots = 4;

struct Shared {
  bf16_t keys[key_slots][2][part_elements];    // k, v
  bf16_t queries[stages][2][part_elements];    // q, dout
  bf16_t gradients[2][groups][part_elements];  // dS^T, of this step and of the one before
  float lse[stages][side], delta[stages][side];
};

// Copies `count` (of 64, at least one) rows of a head of two tensors into tiles that lie one after the other, by 256
// threads, of which this is one; the rest becomes zeros.
__device__ inline void copy_two(bf16_t* to, const HeadsView& first, const HeadsView& second, std::int64_t row, int head,
                                int count, int thread) {
  const int piece = thread % 8, own = thread / 8;
  const unsigned at = shared_address(to) + own * 128 + (piece ^ (own % 8)) * 16;
#pragma unroll
  for (int r = 0; r < side; r += 32) {
    const int from = min(own + r, count - 1), bytes = own + r < count ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at + r * 128),
                 "l"(rows_of<side>(first, row + from, head) + piece * 8), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at + r * 128 + part_bytes),
                 "l"(rows_of<side>(second, row + from, head) + piece * 8), "r"(bytes)
                 : "memory");
  }
}

__global__ void __launch_bounds__(threads, 1) attention_grad_narrow_kernel(AttentionArguments a, int chunk_tiles) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const Tile chunk = find_tile(a, a.cu_k, chunk_tiles * side, static_cast<int>(blockIdx.x) / a.kv_heads);
  if (!chunk.any) return;
  const Document& d = chunk.document;
  const int kv_head = static_cast<int>(blockIdx.x) % a.kv_heads, heads = a.heads / a.kv_heads;
  // Tiles of the document, in order: [begin, past) are the chunk's; queries of [begin, end) see any of its keys.
  const int tiles = (d.q_count + side - 1) / side, reach = (d.window + side - 2) / side;
  const int begin = chunk.first / side, past = min(begin + chunk_tiles, tiles), end = min(past + reach, tiles);
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / group_threads, 0);
  const int lane = static_cast<int>(threadIdx.x) % warp;

  // Two of the groups do this: `thread` is from 0 to 255, or less for the third.
  const auto fetch_keys = [&](int tile, int thread) {
    if (thread < 0) return;
    copy_two(shared.keys[tile % key_slots][0], a.k, a.v, d.q_begin + tile * side, kv_head, d.q_count - tile * side,
             thread);
  };
  const auto fetch_queries = [&](int tile, int in_group, int stage, int thread) {
    if (thread < 0) return;
    const int first = tile * side, head = kv_head * heads + in_group;
    copy_two(shared.queries[stage][0], a.q, a.dout, d.q_begin + first, head, d.q_count - first, thread);
    if (thread >= 2 * side) return;
    const int column = thread % side;
    const bool second = thread >= side;
    copy_statistic((second ? shared.delta : shared.lse)[stage] + column, second, a, d, head, first + column);
  };
  const int early = static_cast<int>(threadIdx.x) < 2 * group_threads ? static_cast<int>(threadIdx.x) : -1;
  for (int tile = max(begin - reach, 0); tile <= begin; ++tile) fetch_keys(tile, early);
  static_assert(stages == 3);  // and at least three heads
  fetch_queries(begin, 0, 0, early);
  commit_copies();
  fetch_queries(begin, 1, 1, early);
  commit_copies();

  const float scale = a.scale * log2_e;
  Sums dk[1], dv[1];
  const auto write_keys = [&](int tile) {  // by way of the tile's v, which is of no use any more
    if (tile < begin || tile >= past) return;
    bf16_t* const staging = shared.keys[tile % key_slots][1];
    const std::int64_t row = d.q_begin + tile * side;
    const int rows = d.q_count - tile * side;
    store_tile<side>(rows_of<side>(a.dv, row, kv_head), a.dv.width, staging, dv, 1, rows);
    store_tile<side>(rows_of<side>(a.dk, row, kv_head), a.dk.width, staging, dk, a.scale, rows);
  };
#pragma unroll
  for (int i = 0; i < side / 2; ++i) dk[0][i] = dv[0][i] = 0;

  int tile = begin, in_group = 0, stage = 0;
  for (int step = 0;; ++step) {
    wait_copies<stages - 2>();
    publish();
    __syncthreads();
    const int turn = step % groups;  // whose it is to make dq; the others copy
    const int thread =
        group == turn ? -1 : (group + groups - 1 - turn) % groups * group_threads + thread_number() % group_threads;
    {
      const bool wraps = in_group + 2 >= heads;
      if (tile + wraps < end)
        fetch_queries(tile + wraps, in_group + 2 - (wraps ? heads : 0), stage > 0 ? stage - 1 : 2, thread);
    }
    // Only now has the last dq of the tile before been made, of the keys that these replace.
    if (in_group == 1 && tile + 1 < past) fetch_keys(tile + 1, thread);
    commit_copies();

    const int last_tile = tile - (in_group == 0), last_head = in_group > 0 ? in_group - 1 : heads - 1;
    if (step > 0 && last_tile < past && group == turn) {
      Sums dq[1];
      bf16_t* const parts = shared.gradients[(step - 1) % 2][0];
      begin_products();
#pragma unroll
      for (int i = 0; i < groups; ++i) {
        // A group without a tile has left zeros; any keys that are there will do for them.
        const int from = max(last_tile - min(i, reach), 0), by = (last_tile + groups - i) % groups;
        transposed_products(dq[0], parts + by * part_elements, shared.keys[from % key_slots][0], i > 0);
      }
      commit_products();
      wait_products<0>();
      settled(dq[0]);
      group_barrier(group);  // all have multiplied
      const int row = last_tile * side;
      store_tile<side>(rows_of<side>(a.dq, d.q_begin + row, kv_head * heads + last_head), a.dq.width,
                       parts + group * part_elements, dq, a.scale, d.q_count - row);
    }
    if (tile == end) break;

    const int behind = (tile + groups - group) % groups, own = tile - behind;  // the group's tile of keys
    const bool fresh = behind == 0 && in_group == 0;
    if (fresh) write_keys(tile - groups);
    if (behind > reach || own < 0) {
      store_operand(shared.gradients[step % 2][group], Operand{});
    } else if (own < past) {
      Sums scores, gradients;
      const bf16_t *const q = shared.queries[stage][0], *const dout = shared.queries[stage][1];
      begin_products();
      row_products<side>(scores, shared.keys[own % key_slots][0], q);
      commit_products();
      row_products<side>(gradients, shared.keys[own % key_slots][1], dout);
      commit_products();
      wait_products<1>();
      settled(scores);
      // Queries beyond the document's are zeros, and add nothing; no query sees keys beyond it.
      const int corner = behind * side,
                distance = corner + lane % 4 * 2 - (static_cast<int>(threadIdx.x) / warp % 4 * 16 + lane / 4);
      key_probabilities(scores, scale, shared.lse[stage], corner, distance, d.window);
      wait_products<0>();
      settled(gradients);
      settled(scores);  // packed below, not before: there are no registers for it
      Operand probabilities, score_gradients;
#pragma unroll
      for (int n = 0; n < side / 8; ++n) {
        const float2 delta = *reinterpret_cast<const float2*>(&shared.delta[stage][8 * n + lane % 4 * 2]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float x = scores[4 * n + 2 * i], y = scores[4 * n + 2 * i + 1];
          probabilities[n / 2][n % 2 * 2 + i] = pack(x, y);
          score_gradients[n / 2][n % 2 * 2 + i] =
              pack(x * (gradients[4 * n + 2 * i] - delta.x), y * (gradients[4 * n + 2 * i + 1] - delta.y));
        }
      }
      if (tile < past) store_operand(shared.gradients[step % 2][group], score_gradients);
      settled(probabilities);
      settled(score_gradients);
      begin_products();
      add_products<side>(dv, probabilities, dout, !fresh);
      add_products<side>(dk, score_gradients, q, !fresh);
      commit_products();
      wait_products<0>();
      settled(dv[0]);
      settled(dk[0]);
    }
    if (++stage == stages) stage = 0;
    if (++in_group == heads) in_group = 0, ++tile;
  }
  write_keys(end - 1 - (end - 1 + groups - group) % groups);
}

}  // namespace

void hopper_attention_grad_narrow(cudaStream_t stream, const AttentionArguments& a, int multiprocessors) {
  SO_CHECK(hopper_attention_takes_narrow(a), "a window of {}, heads of {}", a.window, a.head_dim);
  // A chunk computes a tile's worth beyond its own; few long chunks leave multiprocessors idle at the end.
  const auto cost = [&](std::int64_t tiles) {
    const std::int64_t chunks = (a.k_rows + tiles * side - 1) / (tiles * side) * a.kv_heads;
    return (chunks + multiprocessors - 1) / multiprocessors * (tiles + 1);
  };
  std::int64_t tiles = 2;
  for (std::int64_t more = tiles + 1; more <= 16; ++more)
    if (cost(more) <= cost(tiles)) tiles = more;
  SO_CUDA(
      cudaFuncSetAttribute(attention_grad_narrow_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
  const unsigned blocks = blocks_for(most_tiles(a.k_rows, a.documents, static_cast<int>(tiles) * side) * a.kv_heads, 1);
  attention_grad_narrow_kernel<<<blocks, threads, sizeof(Shared), stream>>>(a, static_cast<int>(tiles));
  SO_CUDA_LAUNCHED("attention grad_narrow_kernel");
}

}  // namespace so
