// The gradient of attention with heads of 64 and 128 on Hopper's matrix units (attention_kernels.h). Tiles of 64
// queries and 64 keys, only those in which a query and a key meet; each of the two kernels computes the scores for
// itself, so that every sum has one owner and one order.
#include "ops/cuda/hopper/attention_tiles.h"

namespace so {
namespace {

using namespace kernel;
using namespace hopper;

// --- dq: grid (tiles of queries, key heads), each block as attention_tiles.h says ---
// With S = scale q k^T, P = exp(S - lse), delta = rowsum(dout out), dS = P (dout v^T - delta):  dq = scale dS k.

template <int D>
struct QueryShared {
  bf16_t q[2][query_groups][side * D], dout[2][query_groups][side * D];  // of a pair of heads, and of the next
  KeySlots<D> keys;
};

template <int D>
__global__ void __launch_bounds__(query_threads, D == 64 ? 2 : 1) attention_grad_query_kernel(AttentionArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<QueryShared<D>*>(memory);
  const Place place(a, a.cu_q);
  if (!place.tile.any) return;
  const QueryWalk walk(a, place);
  const int group = static_cast<int>(threadIdx.x) / group_threads, lane = static_cast<int>(threadIdx.x) % warp;
  const int row = walk.first_row + static_cast<int>(threadIdx.x) / warp % 4 * 16 + lane / 4;  // and 8 more
  const float scale = a.scale * log2_e;
  const auto fetch = [&](int pair) {
#pragma unroll
    for (int g = 0; g < query_groups; ++g)
      if (const int in_pair = pair * query_groups + g; in_pair < walk.heads) {
        walk.fetch_queries<D>(shared.q[pair % 2][g], a.q, in_pair);
        walk.fetch_queries<D>(shared.dout[pair % 2][g], a.dout, in_pair);
      }
  };
  walk.begin(shared.keys, a, fetch);

  // A lane fetches the log-sum-exp or delta of one of the warp's rows.
  const auto fetch_statistic = [&](int in_pair) {
    const int own = row - lane / 4 + lane % 16, head = walk.head(in_pair);
    if (in_pair >= walk.heads || own >= walk.d.q_count) return 0.0f;
    return *(lane < 16 ? lse_at(a, walk.d, head, own) : delta_at(a, walk.d, head, own));
  };
  float statistic = fetch_statistic(group);

  int slot = 0;
  for (int pair = 0; pair < walk.pairs; ++pair) {
    const int in_pair = pair * query_groups + group;
    const bool active = in_pair < walk.heads;
    bf16_t* const q = shared.q[pair % 2][group];
    float lse[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      lse[half] = __shfl_sync(0xffffffffu, statistic, lane / 4 + 8 * half) * log2_e;
      delta[half] = __shfl_sync(0xffffffffu, statistic, 16 + lane / 4 + 8 * half);
    }
    statistic = fetch_statistic(in_pair + query_groups);
    Sums dq[D / side];
    clear(dq);

    for (int block = 0; block < walk.blocks; ++block) {
      walk.advance(shared.keys, a, pair, block, slot, fetch);
      if (active) {
        Sums scores, gradients;
        const bf16_t* const k = shared.keys.k[slot];
        begin_products();
        row_products<D>(scores, q, k);
        commit_products();
        row_products<D>(gradients, shared.dout[pair % 2][group], shared.keys.v[slot]);
        commit_products();
        wait_products<1>();
        settled(scores);
        const int begin = walk.first_key + block * side, distance = row + walk.shift() - begin - lane % 4 * 2;
        query_probabilities(scores, scale, lse, walk.first_row + walk.shift() - begin, distance, walk.d.window);
        wait_products<0>();
        settled(gradients);
        query_score_gradients(scores, gradients, delta);
        Operand operand;
        to_operand(operand, scores);
        settled(operand);
        begin_products();
        add_products<D>(dq, operand, k);
        commit_products();
        wait_products<0>();
        settled(dq);
      }
      slot = walk.after(slot);
    }
    if (!active) continue;
    group_barrier(group);  // all have multiplied
    store_tile<D>(rows_of<D>(a.dq, walk.d.q_begin + walk.first_row, walk.head(in_pair)), a.dq.width, q, dq, a.scale,
                  walk.rows);
  }
}

// --- dk and dv: grid (tiles of keys, key heads), one group of warps ---
// dv = P^T dout,  dk = scale dS^T q, over the heads that share the key head and the queries that see the keys.

template <int D>
struct KeyShared {
  static constexpr int stages = D == 64 ? 3 : 2;
  bf16_t k[side * D], v[side * D];
  bf16_t q[stages][side * D], dout[stages][side * D];
  float lse[stages][side], delta[stages][side];
};

template <int D>
__global__ void __launch_bounds__(group_threads, D == 64 ? 3 : 2)
    attention_grad_key_value_kernel(AttentionArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<KeyShared<D>*>(memory);
  constexpr int stages = KeyShared<D>::stages;
  const Place place(a, a.cu_k);
  const Tile& tile = place.tile;
  if (!tile.any) return;
  const Document d = tile.document;
  const int heads = a.heads / a.kv_heads, kv_head = place.kv_head;
  const int lane = static_cast<int>(threadIdx.x) % warp, rows = d.k_count - tile.first;
  const int first_query = d.first_query(tile.first);
  const int blocks = (max(d.past_query(tile.first + side) - first_query, 0) + side - 1) / side, steps = heads * blocks;

  int next_head = kv_head * heads, next_block = 0;
  const auto fetch = [&](int stage) {
    const int begin = first_query + next_block * side, head = next_head;
    copy_tile<D, group_threads>(shared.q[stage], rows_of<D>(a.q, d.q_begin + begin, head), a.q.width,
                                d.q_count - begin);
    copy_tile<D, group_threads>(shared.dout[stage], rows_of<D>(a.dout, d.q_begin + begin, head), a.dout.width,
                                d.q_count - begin);
    const int column = static_cast<int>(threadIdx.x) % side;
    const bool second = static_cast<int>(threadIdx.x) >= side;
    copy_statistic((second ? shared.delta : shared.lse)[stage] + column, second, a, d, head, begin + column);
    if (++next_block == blocks) next_block = 0, ++next_head;
  };
  copy_tile<D, group_threads>(shared.k, rows_of<D>(a.k, d.k_begin + tile.first, kv_head), a.k.width, rows);
  copy_tile<D, group_threads>(shared.v, rows_of<D>(a.v, d.k_begin + tile.first, kv_head), a.v.width, rows);
#pragma unroll
  for (int stage = 0; stage < stages - 1; ++stage) {
    if (stage < steps) fetch(stage);
    commit_copies();
  }

  const int key = tile.first + static_cast<int>(threadIdx.x) / warp * 16 + lane / 4;  // and 8 more
  const float scale = a.scale * log2_e;
  Sums dk[D / side], dv[D / side];
  clear(dk);
  clear(dv);

  int stage = 0, block = 0;
  for (int step = 0; step < steps; ++step) {
    wait_copies<stages - 2>();
    publish();
    __syncthreads();
    if (step + stages - 1 < steps) fetch(stage > 0 ? stage - 1 : stages - 1);
    commit_copies();

    Sums scores, gradients;
    const bf16_t *const q = shared.q[stage], *const dout = shared.dout[stage];
    begin_products();
    row_products<D>(scores, shared.k, q);
    commit_products();
    row_products<D>(gradients, shared.v, dout);
    commit_products();
    wait_products<1>();
    settled(scores);

    // Query r sees key c where 0 <= r + shift - c < window. Rows beyond the document's are zeros, and add nothing.
    const int begin = first_query + block * side, shift = d.k_count - d.q_count;
    const int corner = begin + shift - tile.first, distance = begin + shift + lane % 4 * 2 - key;
    key_probabilities(scores, scale, shared.lse[stage], corner, distance, d.window);
    wait_products<0>();
    settled(gradients);
    Operand probabilities, score_gradients;
    to_operand(probabilities, scores);
    key_score_gradients(scores, gradients, shared.delta[stage]);
    to_operand(score_gradients, scores);
    settled(probabilities);
    settled(score_gradients);
    begin_products();
    add_products<D>(dv, probabilities, dout);
    add_products<D>(dk, score_gradients, q);
    commit_products();
    wait_products<0>();
    settled(dv);
    settled(dk);
    if (++stage == stages) stage = 0;
    if (++block == blocks) block = 0;
  }
  wait_copies<0>();
  __syncthreads();
  const std::int64_t row = d.k_begin + tile.first;
  store_tile<D>(rows_of<D>(a.dv, row, kv_head), a.dv.width, shared.v, dv, 1, rows);
  store_tile<D>(rows_of<D>(a.dk, row, kv_head), a.dk.width, shared.k, dk, a.scale, rows);
}

template <int D>
void gradient(cudaStream_t stream, const AttentionArguments& a) {
  launch<QueryShared<D>>(attention_grad_query_kernel<D>, "attention grad_query_kernel", a.q_rows, query_threads, stream,
                         a);
  launch<KeyShared<D>>(attention_grad_key_value_kernel<D>, "attention grad_key_value_kernel", a.k_rows, group_threads,
                       stream, a);
}

}  // namespace

void hopper_attention_grad(cudaStream_t stream, const AttentionArguments& a) {
  SO_CHECK(hopper_attention_takes(a.head_dim), "heads of {}", a.head_dim);
  if (a.head_dim == 64) return gradient<64>(stream, a);
  if (a.head_dim == 256) return hopper_attention_grad_256(stream, a);
  gradient<128>(stream, a);
}

}  // namespace so
