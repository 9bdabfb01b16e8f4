// Attention with heads of 512 on Hopper's matrix units: grid (tiles of queries, heads), each block as attention_wide.h
// says. A part of the ring holds keys, then values.
//
// Arithmetic is 2 x 2 x 64 x 512 operations for a key and a block, for which 2 KB come from the L2 cache: at 5.5 TB/s
// that is 350 TFLOP/s, which is the limit.
#include "ops/cuda/hopper/attention_wide.h"

namespace so {
namespace {

using namespace kernel;
using namespace hopper;

constexpr int forward_stages = 9;

struct WideForwardShared {
  bf16_t q[side * wide_dim];
  bf16_t ring[forward_stages][wide_ring_part];
  bf16_t exchange[wide_groups][part_elements];
  float rows[wide_groups][side];  // of each group: a row's largest score, and at the end its sum
};

// What a lane knows of its two rows.
struct RowSums {
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
};

// Over the lanes that have parts of a row.
__device__ inline float row_largest(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ inline float row_total(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Gives a lane's two rows to the other group, and returns the other group's of them.
__device__ inline void exchange_rows(float (&shared)[wide_groups][side], const float (&own)[2], float (&other)[2]) {
  const int thread = thread_number(), lane = thread % warp, row = thread / warp % 4 * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (lane % 4 == 0) shared[wide_group()][row + 8 * half] = own[half];
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) other[half] = shared[1 - wide_group()][row + 8 * half];
}

// Scores become exponentials, and what was summed up before shrinks with them.
__device__ inline void exponentials(Sums& scores, RowSums& rows, WideSums& out, float (&shared)[wide_groups][side],
                                    float scale) {
  float own[2], other[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    own[half] = rows.largest[half];
#pragma unroll
    for (int n = 0; n < side / 8; ++n)
      own[half] = fmaxf(own[half], fmaxf(scores[4 * n + 2 * half], scores[4 * n + 2 * half + 1]));
    own[half] = row_largest(own[half]);
  }
  exchange_rows(shared, own, other);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float now = fmaxf(own[half], other[half]), base = now == -INFINITY ? 0.0f : now * scale;
    const float shrink = power_of_two(fmaf(rows.largest[half], scale, -base));
    rows.largest[half] = now;
    rows.total[half] *= shrink;
#pragma unroll
    for (int n = 0; n < side / 8; ++n)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        float& s = scores[4 * n + i];
        s = power_of_two(fmaf(s, scale, -base));
        rows.total[half] += s;
      }
#pragma unroll
    for (int part = 0; part < own_parts; ++part)
#pragma unroll
      for (int n = 0; n < side / 8; ++n) {
        out[part][4 * n + 2 * half] *= shrink;
        out[part][4 * n + 2 * half + 1] *= shrink;
      }
  }
}

__global__ void __launch_bounds__(wide_threads, 1) attention_wide_forward_kernel(AttentionArguments a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<WideForwardShared*>(memory);
  const WidePlace place(a, a.cu_q, a.heads);
  if (!place.tile.any) return;
  const Document d = place.tile.document;
  const int first_row = place.tile.first, head = place.head, kv_head = head / (a.heads / a.kv_heads);
  const int count = d.q_count - first_row, shift = d.k_count - d.q_count;
  const int first_key = d.first(first_row);
  const int blocks = (d.visible(min(first_row + side, d.q_count) - 1) - first_key + wide_rows - 1) / wide_rows;

  int fetched_block = 0, fetched_part = 0;
  const auto fetch = [&](bf16_t* to) {
    if (fetched_block == blocks) return;
    const bool keys = fetched_part < wide_parts;
    const HeadsView& from = keys ? a.k : a.v;
    const int begin = first_key + fetched_block * wide_rows;
    const bf16_t* const rows = rows_of<wide_dim>(from, d.k_begin + begin, kv_head);
    if (keys)
      copy_scored_part(to, rows, from.width, d.k_count - begin, fetched_part);
    else
      copy_summed_part(to, rows, from.width, d.k_count - begin, fetched_part - wide_parts);
    if (++fetched_part == 2 * wide_parts) fetched_part = 0, ++fetched_block;
  };
  PartRing<forward_stages> ring{shared.ring};
  copy_wide_tile(shared.q, rows_of<wide_dim>(a.q, d.q_begin + first_row, head), a.q.width, count);
  ring.begin(fetch);

  const int lane = static_cast<int>(threadIdx.x) % warp;
  const int row = first_row + static_cast<int>(threadIdx.x) / warp % 4 * 16 + lane / 4;  // and 8 more
  const float scale = a.scale * log2_e;
  RowSums rows;
  WideSums out;
  clear(out);
  for (int block = 0; block < blocks; ++block) {
    Sums scores;
    clear(scores);
    add_wide_scores(scores, shared.q, ring, fetch);
    wait_products<0>();
    settled(scores);
    settled(out);
    const int begin = first_key + block * wide_rows + wide_group() * side,
              distance = row + shift - begin - lane % 4 * 2;
    with_window(first_row + shift - begin, d.window, [&](auto sees) {
#pragma unroll
      for (int n = 0; n < side / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (!sees(distance + i / 2 * 8 - 8 * n - i % 2)) scores[4 * n + i] = -INFINITY;
    });
    exponentials(scores, rows, out, shared.rows, scale);
    Operand operand;
    to_operand(operand, scores);
    add_wide_products(out, operand, shared.exchange, ring, fetch);
  }
  end_walk();

  // The sum of the group's keys, then with the other's, in the order of keys. The sink's share comes last.
  float own[2], other[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) own[half] = row_total(rows.total[half]);
  exchange_rows(shared.rows, own, other);
  const float sink = sink_of<bf16_t>(a, head) * log2_e;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float total = wide_group() == 0 ? own[half] + other[half] : other[half] + own[half];
    const bool blind = rows.largest[half] == -INFINITY;
    const float seen = rows.largest[half] * scale, highest = fmaxf(seen, sink),
                base = highest == -INFINITY ? 0.0f : highest;
    const float share = power_of_two(seen - base), sum = share * total + power_of_two(sink - base);
    const float factor = blind ? 0.0f : share / sum;
    if (lane % 4 == 0 && wide_group() == 0 && row + 8 * half < d.q_count)
      *lse_at(a, d, head, row + 8 * half) = (blind ? sink : highest + log2f(sum)) * ln_2;
#pragma unroll
    for (int part = 0; part < own_parts; ++part)
#pragma unroll
      for (int n = 0; n < side / 8; ++n) {
        out[part][4 * n + 2 * half] *= factor;
        out[part][4 * n + 2 * half + 1] *= factor;
      }
  }
  store_wide_tile(rows_of<wide_dim>(a.out, d.q_begin + first_row, head), a.out.width, shared.q, out, 1, count);
}

}  // namespace

void hopper_attention_wide(cudaStream_t stream, const AttentionArguments& a) {
  SO_CHECK(a.head_dim == wide_dim, "heads of {}", a.head_dim);
  launch_wide<WideForwardShared>(attention_wide_forward_kernel, "attention_wide_forward_kernel", a.q_rows, a.heads,
                                 stream, a);
}

}  // namespace so
