// Attention with narrow windows on Hopper's matrix units, heads of 64 (cuDNN is faster for larger ones), of any number
// to a key head: grid (tiles of queries, key heads), each block as attention_tiles.h says.
#include "ops/cuda/hopper/attention_tiles.h"

namespace so {
namespace {

using namespace kernel;
using namespace hopper;

constexpr int D = 64;

struct Shared {
  bf16_t q[2][query_groups][side * D];  // of a pair of heads, and of the next
  KeySlots<D> keys;
};

__global__ void __launch_bounds__(query_threads, 2) attention_forward_kernel(AttentionArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  const Place place(a, a.cu_q);
  if (!place.tile.any) return;
  const QueryWalk walk(a, place);
  const int group = static_cast<int>(threadIdx.x) / group_threads, lane = static_cast<int>(threadIdx.x) % warp;
  const int row = walk.first_row + static_cast<int>(threadIdx.x) / warp % 4 * 16 + lane / 4;  // and 8 more
  const float scale = a.scale * log2_e;
  const auto fetch = [&](int pair) {
#pragma unroll
    for (int g = 0; g < query_groups; ++g)
      if (pair * query_groups + g < walk.heads)
        walk.fetch_queries<D>(shared.q[pair % 2][g], a.q, pair * query_groups + g);
  };
  walk.begin(shared.keys, a, fetch);

  int slot = 0;
  for (int pair = 0; pair < walk.pairs; ++pair) {
    const bool active = pair * query_groups + group < walk.heads;
    const int head = walk.head(pair * query_groups + group);
    bf16_t* const q = shared.q[pair % 2][group];
    Sums out[D / side];
#pragma unroll
    for (auto& part : out)
#pragma unroll
      for (float& x : part) x = 0;
    float largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};

    for (int block = 0; block < walk.blocks; ++block) {
      walk.advance(shared.keys, a, pair, block, slot, fetch);
      if (active) {
        Sums scores;
        begin_products();
        row_products<D>(scores, q, shared.keys.k[slot]);
        commit_products();
        wait_products<0>();
        settled(scores);
        const int begin = walk.first_key + block * side, distance = row + walk.shift() - begin - lane % 4 * 2;
        with_window(walk.first_row + walk.shift() - begin, walk.d.window, [&](auto sees) {
#pragma unroll
          for (int n = 0; n < side / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              if (!sees(distance + i / 2 * 8 - 8 * n - i % 2)) scores[4 * n + i] = -INFINITY;
        });
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float now = largest[half];
#pragma unroll
          for (int n = 0; n < side / 8; ++n)
            now = fmaxf(now, fmaxf(scores[4 * n + 2 * half], scores[4 * n + 2 * half + 1]));
          now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
          now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
          const float base = now == -INFINITY ? 0.0f : now * scale;  // nothing seen so far
          const float shrink = power_of_two(fmaf(largest[half], scale, -base));
          largest[half] = now;
          total[half] *= shrink;
#pragma unroll
          for (int n = 0; n < side / 8; ++n)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; ++i) {
              float& s = scores[4 * n + i];
              s = power_of_two(fmaf(s, scale, -base));
              total[half] += s;
            }
#pragma unroll
          for (auto& part : out)
#pragma unroll
            for (int n = 0; n < side / 8; ++n) {
              part[4 * n + 2 * half] *= shrink;
              part[4 * n + 2 * half + 1] *= shrink;
            }
        }
        Operand operand;
        to_operand(operand, scores);
        settled(operand);
#pragma unroll
        for (auto& part : out) settled(part);
        begin_products();
        add_products<D>(out, operand, shared.keys.v[slot]);
        commit_products();
        wait_products<0>();
#pragma unroll
        for (auto& part : out) settled(part);
      }
      slot = walk.after(slot);
    }
    if (!active) continue;

    // The sink's share of the softmax comes last.
    const float sink = sink_of<bf16_t>(a, head) * log2_e;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total[half] += __shfl_xor_sync(0xffffffffu, total[half], 1);
      total[half] += __shfl_xor_sync(0xffffffffu, total[half], 2);
      const int own = row + 8 * half;
      const bool blind = largest[half] == -INFINITY;
      const float seen = largest[half] * scale, highest = fmaxf(seen, sink),
                  base = highest == -INFINITY ? 0.0f : highest;
      const float share = power_of_two(seen - base), sum = share * total[half] + power_of_two(sink - base);
      const float factor = blind ? 0.0f : share / sum;
      if (lane % 4 == 0 && own < walk.d.q_count)
        *lse_at(a, walk.d, head, own) = (blind ? sink : highest + log2f(sum)) * ln_2;
#pragma unroll
      for (auto& part : out)
#pragma unroll
        for (int n = 0; n < side / 8; ++n) {
          part[4 * n + 2 * half] *= factor;
          part[4 * n + 2 * half + 1] *= factor;
        }
    }
    group_barrier(group);  // all have multiplied
    store_tile<D>(rows_of<D>(a.out, walk.d.q_begin + walk.first_row, head), a.out.width, q, out, 1, walk.rows);
  }
}

}  // namespace

void hopper_attention(cudaStream_t stream, const AttentionArguments& a) {
  SO_CHECK(a.head_dim == D, "heads of {}", a.head_dim);
  launch<Shared>(attention_forward_kernel, "attention forward_kernel", a.q_rows, query_threads, stream, a);
}

}  // namespace so
