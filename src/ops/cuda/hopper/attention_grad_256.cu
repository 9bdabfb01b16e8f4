// The gradient of attention with heads of 256 on Hopper's matrix units (attention_kernels.h). Tiles of 64 queries and
// 64 keys, only those in which a query and a key meet. With
//
//   S = scale q k^T,  P = exp(S - lse),  delta = rowsum(dout out),  dS = P (dout v^T - delta):
//   dq = scale dS k,  dk = scale dS^T q,  dv = P^T dout,
//
// a kernel for dq and one for dk and dv, so that every sum has one owner and one order: seven products where five would
// do. Sums of 64 x 256 are half of the registers of a group of warps, and each group has one such sum. Of a step's
// products the last run on while the next tiles are waited for.
#include "ops/cuda/hopper/attention_tiles.h"

namespace so {
namespace {

using namespace kernel;
using namespace hopper;

constexpr int dim = 256, tile_elements = side * dim;
constexpr int groups = 2, threads = groups * group_threads;
using RowSums = Sums[dim / side];

// --- dq: grid (tiles of queries, query heads), two at a time, a group of warps for each: two heads that share a key
// head or, where those are odd in number, two tiles of a head ---

struct QueryShared {
  bf16_t q[groups][tile_elements], dout[groups][tile_elements];
  bf16_t ring[3][tile_elements];  // v and k of a block of keys, v and k of the next, ...
};

// A block computes dq of so many rows of so many heads.
struct QueryBlock {
  int rows, heads;
};
constexpr QueryBlock query_block(const AttentionArguments& a) {
  return a.heads / a.kv_heads % groups == 0 ? QueryBlock{side, groups} : QueryBlock{groups * side, 1};
}

__global__ void __launch_bounds__(threads, 1) attention_grad_256_query_kernel(AttentionArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<QueryShared*>(memory);
  const QueryBlock has = query_block(a);
  const int places = a.heads / has.heads;
  const Tile tile = find_tile(a, a.cu_q, has.rows, static_cast<int>(blockIdx.x) / places);
  if (!tile.any) return;
  const Document& d = tile.document;
  const int first_head = static_cast<int>(blockIdx.x) % places * has.heads,
            kv_head = first_head / (a.heads / a.kv_heads);
  const int first_key = d.first(tile.first);
  const int blocks = (d.visible(min(tile.first + has.rows, d.q_count) - 1) - first_key + side - 1) / side;
  const int group = static_cast<int>(threadIdx.x) / group_threads, lane = static_cast<int>(threadIdx.x) % warp;
  const auto head_of = [&](int g) { return first_head + (has.heads > 1 ? g : 0); };
  const auto first_of = [&](int g) { return tile.first + (has.heads > 1 ? 0 : g * side); };
  const int head = head_of(group), first = first_of(group);

#pragma unroll 1
  for (int g = 0; g < groups; ++g) {
    const int count = d.q_count - first_of(g);  // 0 or less for a second tile beyond the document
    const std::int64_t row = d.q_begin + min(first_of(g), d.q_count - 1);
    copy_tile<dim, threads>(shared.q[g], rows_of<dim>(a.q, row, head_of(g)), a.q.width, count);
    copy_tile<dim, threads>(shared.dout[g], rows_of<dim>(a.dout, row, head_of(g)), a.dout.width, count);
  }
  int slot = 0;  // of the ring, which the next tile is copied into
  const auto fetch = [&](const HeadsView& from, int block) {
    const int begin = first_key + block * side;
    if (block < blocks)
      copy_tile<dim, threads>(shared.ring[slot], rows_of<dim>(from, d.k_begin + begin, kv_head), from.width,
                              d.k_count - begin);
    if (++slot == 3) slot = 0;
  };
  fetch(a.v, 0);
  fetch(a.k, 0);
  commit_copies();

  const int row = first + static_cast<int>(threadIdx.x) / warp % 4 * 16 + lane / 4;  // and 8 more
  const int shift = d.k_count - d.q_count;
  const float scale = a.scale * log2_e;
  float lse[2] = {}, delta[2] = {};
  load_statistics(lse, delta, a, d, head, row);

  RowSums dq;
  clear(dq);
  Operand operand{};
  int v_slot = 0;
  for (int block = 0; block < blocks; ++block) {
    wait_copies<0>();
    publish();
    __syncthreads();
    const int k_slot = v_slot < 2 ? v_slot + 1 : 0;
    const bf16_t* const k = shared.ring[k_slot];
    Sums scores, gradients;
    begin_products();
    row_products<dim>(gradients, shared.dout[group], shared.ring[v_slot]);
    commit_products();
    row_products<dim>(scores, shared.q[group], k);
    commit_products();
    wait_products<1>();  // so the last dq too
    settled(operand);
    settled(dq);
    settled(gradients);
    __syncthreads();
    fetch(a.v, block + 1);
    fetch(a.k, block + 1);
    commit_copies();
    wait_products<0>();
    settled(scores);

    const int begin = first_key + block * side, distance = row + shift - begin - lane % 4 * 2;
    query_probabilities(scores, scale, lse, first + shift - begin, distance, d.window);
    query_score_gradients(scores, gradients, delta);
    to_operand(operand, scores);
    settled(operand);
    begin_products();
    add_products<dim>(dq, operand, k);
    commit_products();
    v_slot = k_slot < 2 ? k_slot + 1 : 0;
  }
  wait_products<0>();
  settled(operand);
  settled(dq);
  wait_copies<0>();  // without a block of keys the queries have not been waited for
  __syncthreads();
  store_tile<dim>(rows_of<dim>(a.dq, d.q_begin + first, head), a.dq.width, shared.q[group], dq, a.scale,
                  d.q_count - first);
}

// --- dk and dv: grid (tiles of keys, key heads), over the heads that share the key head and the queries that see the
// keys. The first group of warps computes S^T from k and q, and dk; the second dout v^T, and dv. Each has a tile of its
// own that stays, and one of the queries' side to multiply by, first its columns and then its rows. ---

struct KeyShared {
  bf16_t own[groups][tile_elements];        // k, v
  bf16_t others[2][groups][tile_elements];  // q, dout, of this step and the next
  // The groups give each other these: a thread's elements are those of the thread with its number in the other group.
  float4 gradients[side / 8][group_threads];      // dout v^T - delta
  uint4 probabilities[side / 16][group_threads];  // P^T, rounded
  float lse[2][side], delta[2][side];
};

__global__ void __launch_bounds__(threads, 1) attention_grad_256_key_value_kernel(AttentionArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<KeyShared*>(memory);
  const Place place(a, a.cu_k);
  const Tile& tile = place.tile;
  if (!tile.any) return;
  const Document& d = tile.document;
  const int heads = a.heads / a.kv_heads, kv_head = place.kv_head, rows = d.k_count - tile.first;
  const int first_query = d.first_query(tile.first);
  const int blocks = (max(d.past_query(tile.first + side) - first_query, 0) + side - 1) / side, steps = heads * blocks;
  const int group = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / group_threads, 0);
  const int thread = static_cast<int>(threadIdx.x) % group_threads, lane = thread % warp;

  int next_head = kv_head * heads, next_block = 0;
  const auto fetch = [&](int stage) {
    const int begin = first_query + next_block * side, head = next_head, count = d.q_count - begin;
    copy_tile<dim, threads>(shared.others[stage][0], rows_of<dim>(a.q, d.q_begin + begin, head), a.q.width, count);
    copy_tile<dim, threads>(shared.others[stage][1], rows_of<dim>(a.dout, d.q_begin + begin, head), a.dout.width,
                            count);
    if (thread < side)
      copy_statistic((group == 1 ? shared.delta : shared.lse)[stage] + thread, group == 1, a, d, head, begin + thread);
    if (++next_block == blocks) next_block = 0, ++next_head;
  };
  const std::int64_t own_row = d.k_begin + tile.first;
  copy_tile<dim, threads>(shared.own[0], rows_of<dim>(a.k, own_row, kv_head), a.k.width, rows);
  copy_tile<dim, threads>(shared.own[1], rows_of<dim>(a.v, own_row, kv_head), a.v.width, rows);
  if (steps > 0) fetch(0);
  commit_copies();

  const int key = tile.first + thread / warp * 16 + lane / 4;  // and 8 more
  const int shift = d.k_count - d.q_count;
  const float scale = a.scale * log2_e;
  RowSums sums;
  clear(sums);
  Operand operand{};
  int block = 0;
  for (int step = 0; step < steps; ++step) {
    const int stage = step % 2;
    const bf16_t* const other = shared.others[stage][group];
    wait_copies<0>();
    publish();
    __syncthreads();
    Sums scores;  // or gradients of P
    begin_products();
    row_products<dim>(scores, shared.own[group], other);
    commit_products();
    wait_products<1>();  // those of the step before
    settled(operand);
    settled(sums);
    __syncthreads();
    if (step + 1 < steps) fetch(1 - stage);
    commit_copies();
    wait_products<0>();
    settled(scores);

    if (group == 0) {
      // Query r sees key c where 0 <= r + shift - c < window. Rows beyond the document's are zeros, and add nothing.
      const int begin = first_query + block * side;
      const int corner = begin + shift - tile.first, distance = begin + shift + lane % 4 * 2 - key;
      key_probabilities(scores, scale, shared.lse[stage], corner, distance, d.window);
      to_operand(operand, scores);
#pragma unroll
      for (int c = 0; c < side / 16; ++c)
        shared.probabilities[c][thread] = make_uint4(operand[c][0], operand[c][1], operand[c][2], operand[c][3]);
    } else {
#pragma unroll
      for (int n = 0; n < side / 8; ++n) {
        const float2 delta = *reinterpret_cast<const float2*>(&shared.delta[stage][8 * n + lane % 4 * 2]);
        shared.gradients[n][thread] = make_float4(scores[4 * n] - delta.x, scores[4 * n + 1] - delta.y,
                                                  scores[4 * n + 2] - delta.x, scores[4 * n + 3] - delta.y);
      }
    }
    __syncthreads();
    if (group == 0) {
#pragma unroll
      for (int n = 0; n < side / 8; ++n) {
        const float4 gradients = shared.gradients[n][thread];
        scores[4 * n] *= gradients.x, scores[4 * n + 1] *= gradients.y;
        scores[4 * n + 2] *= gradients.z, scores[4 * n + 3] *= gradients.w;
      }
      to_operand(operand, scores);
    } else {
#pragma unroll
      for (int c = 0; c < side / 16; ++c) {
        const uint4 p = shared.probabilities[c][thread];
        operand[c][0] = p.x, operand[c][1] = p.y, operand[c][2] = p.z, operand[c][3] = p.w;
      }
    }
    settled(operand);
    begin_products();
    add_products<dim>(sums, operand, other);
    commit_products();
    if (++block == blocks) block = 0;
  }
  wait_products<0>();
  settled(operand);
  settled(sums);
  wait_copies<0>();
  __syncthreads();
  const HeadsView& to = group == 0 ? a.dk : a.dv;
  store_tile<dim>(rows_of<dim>(to, own_row, kv_head), to.width, shared.own[group], sums, group == 0 ? a.scale : 1,
                  rows);
}

}  // namespace

void hopper_attention_grad_256(cudaStream_t stream, const AttentionArguments& a) {
  SO_CHECK(a.head_dim == dim, "heads of {}", a.head_dim);
  SO_CUDA(cudaFuncSetAttribute(attention_grad_256_query_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               sizeof(QueryShared)));
  const QueryBlock has = query_block(a);
  const unsigned blocks = blocks_for(most_tiles(a.q_rows, a.documents, has.rows) * (a.heads / has.heads), 1);
  attention_grad_256_query_kernel<<<blocks, threads, sizeof(QueryShared), stream>>>(a);
  SO_CUDA_LAUNCHED("attention_grad_256_query_kernel");
  launch<KeyShared>(attention_grad_256_key_value_kernel, "attention_grad_256_key_value_kernel", a.k_rows, threads,
                    stream, a);
}

}  // namespace so
