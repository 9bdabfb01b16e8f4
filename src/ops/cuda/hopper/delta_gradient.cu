// The last kernel of the gated delta rule's gradient: those of queries, keys, decays and rates, of all chunks at once,
// from what the scans kept (delta_chunks.h). A block does a chunk and key head, its value heads one after another, with
// two groups of warps, each for half of k_dim.
//
// With S the state before a chunk and dS' the gradient of the one after it, of the scaled queries and keys:
//   dQ = exp(G) D S^T + [D U^T] K      dK = -b exp(G) dR S^T + [-dR U^T] K                      (as a row)
//                                         + exp(G' - G) U dS'^T + [D U^T]^T Q + [-dR U^T]^T K   (as a column)
// where [ ] are masked and scaled as P and A are. Since exp(G) is a factor of what a row gives, and exp(-G) of what a
// column does, dG = <Q, dQ> + <K, dK as a row> - <K, dK as a column>, and dG' = exp(G') <S, dS'> + the sum over rows of
// <K, exp(G' - G) U dS'^T>. In the same way db = <dR, U> / b.
#include "ops/cuda/hopper/delta_chunks.h"
#include "ops/cuda/hopper/delta_gradient.h"

namespace so::hopper {
namespace {

using namespace kernel;

constexpr int groups = 2, block_threads = groups * group_threads, warps = block_threads / warp;

// Sums over k_dim of a row, each of one group's half.
enum Dot { of_query, of_row, of_column, of_state, dots };

struct HeadTiles {
  bf16_t dout[side * head_dim], values[side * head_dim], dvalues[side * head_dim];
};

struct GradientShared {
  bf16_t k[side * head_dim], q[side * head_dim];
  HeadTiles tiles;
  bf16_t states[head_parts][side * head_dim], dstates[head_parts][side * head_dim];  // halves of v_dim
  bf16_t scores[part_elements], system[part_elements];
  float4 scales[side];
  float total[side], rate[side], k_norm[side], q_norm[side];
  float dot[dots][groups][side];
  float rate_dots[side];
  float state_dots[warps];
};

// <dR, U> of each row: four lanes a row.
__device__ void find_rate_dots(GradientShared& shared, const HeadTiles& tiles) {
  const int row = static_cast<int>(threadIdx.x) / 4, lane = static_cast<int>(threadIdx.x) % 4;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < head_dim / 8; ++i) {
    const int column = 2 * lane + 8 * i;
    const float2 u = pair_at(tiles.values + column / side * part_elements, row, column % side),
                 dr = pair_at(tiles.dvalues + column / side * part_elements, row, column % side);
    sum = fmaf(u.x, dr.x, fmaf(u.y, dr.y, sum));
  }
  sum = group_sum<4>(sum);
  if (lane == 0) shared.rate_dots[row] = sum;
}

// <S, dS'>, one sum a warp.
__device__ void find_state_dot(GradientShared& shared) {
  const auto* const s = reinterpret_cast<const uint4*>(shared.states);
  const auto* const ds = reinterpret_cast<const uint4*>(shared.dstates);
  float sum = 0;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < state_elements / 8; i += block_threads) {
    const uint4 x = s[i], y = ds[i];
    const unsigned left[4] = {x.x, x.y, x.z, x.w}, right[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int j = 0; j < 4; ++j)
      sum += unpack(left[j], 0) * unpack(right[j], 0) + unpack(left[j], 1) * unpack(right[j], 1);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % warp == 0) shared.state_dots[threadIdx.x / warp] = sum;
}

// One warp, two rows a lane: the gradients of a value head's decays and rates. `before`: <Q, dQ> + <K, dK as a row> -
// <K, dK as a column> of the value heads before.
__device__ void write_gates(const GradientShared& shared, const DeltaArguments& a, const DeltaChunk& chunk, int head,
                            float decay, float (&before)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % warp;
  const auto sum = [&](Dot dot, int row) { return shared.dot[dot][0][row] + shared.dot[dot][1][row]; };
  float own[2], of_whole = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * lane + i;
    const float all = sum(of_query, row) + sum(of_row, row) - sum(of_column, row);
    own[i] = all - before[i];
    before[i] = all;
    of_whole += sum(of_state, row);
  }
  of_whole = warp_sum(of_whole);
  float states = 0;
#pragma unroll
  for (int i = 0; i < warps; ++i) states += shared.state_dots[i];
  of_whole = fmaf(decay, states, of_whole);
  // A row's decay is in the sums of that row and all after it.
  float behind = own[0] + own[1];
#pragma unroll
  for (int distance = 1; distance < warp; distance *= 2) {
    const float other = __shfl_down_sync(0xffffffffu, behind, distance);
    if (lane + distance < warp) behind += other;
  }
  behind = __shfl_down_sync(0xffffffffu, behind, 1);
  if (lane == warp - 1) behind = 0;
  behind += of_whole;
  const float ddecay[2] = {behind + own[1] + own[0], behind + own[1]};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * lane + i;
    if (row >= chunk.count) continue;
    const float rate = shared.rate[row];
    const std::int64_t at = (chunk.begin + row) * a.gate_width + head;
    a.ddecay[at] = ddecay[i];
    a.drate[at] = rate != 0 ? shared.rate_dots[row] / rate : 0;
  }
}

// Sums over the quad that has a row.
__device__ inline void put_dot(GradientShared& shared, Dot dot, int group, const float (&x)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = group_sum<4>(x[half]);
    if (threadIdx.x % 4 == 0) shared.dot[dot][group][row_of(2 * half)] = sum;
  }
}

// c = x S^T of rows of v_dim with a state, for a group's half of k_dim.
__device__ inline void state_products(Sums& c, const bf16_t* x, const bf16_t (&states)[head_parts][side * head_dim],
                                      int group) {
#pragma unroll
  for (int part = 0; part < head_parts; ++part) {
    const std::uint64_t left = descriptor(x + part * part_elements),
                        right = descriptor(states[part] + group * part_elements);
#pragma unroll
    for (int k = 0; k < side / 16; ++k) multiply_rows(c, left + k * column_step, right + k * row_step, part + k > 0);
  }
}

__global__ void __launch_bounds__(block_threads, 1) delta_gradient_kernel(DeltaArguments a, DeltaArrays arrays) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<GradientShared*>(memory);
  const int k_head = static_cast<int>(blockIdx.x) % a.k_heads, heads = a.v_heads / a.k_heads;
  const DeltaChunk chunk = find_chunk(a, static_cast<int>(blockIdx.x) / a.k_heads);
  if (!chunk.any()) return;
  const int thread = static_cast<int>(threadIdx.x), group = thread / group_threads;
  const float scale = rsqrtf(static_cast<float>(head_dim));
  copy_tile<head_dim, block_threads>(shared.k, rows_of(a.k, chunk.begin, k_head), a.k.width, chunk.count);
  copy_tile<head_dim, block_threads>(shared.q, rows_of(a.q, chunk.begin, k_head), a.q.width, chunk.count);
  if (thread < side) {
    const std::int64_t at = static_cast<std::int64_t>(chunk.begin + thread) * a.k_heads + k_head;
    const bool inside = thread < chunk.count;
    shared.k_norm[thread] = inside ? arrays.k_norms[at] : 0;
    shared.q_norm[thread] = inside ? arrays.q_norms[at] : 0;
  }

  // Of this group's half of k_dim, all value heads so far, times 1 / |k| or 1 / (|q| sqrt(k_dim)).
  Sums dq, by_row, by_column;
#pragma unroll
  for (int i = 0; i < side / 2; ++i) dq[i] = by_row[i] = by_column[i] = 0;
  float before[2] = {0, 0};
  const auto fetch_tiles = [&](int head) {
    const std::int64_t own = row_place(a, chunk.begin, head) * head_dim;
    HeadTiles& to = shared.tiles;
    copy_tile<head_dim, block_threads>(to.dout, rows_of(a.dout, chunk.begin, head), a.dout.width, chunk.count);
    copy_tile<head_dim, block_threads>(to.values, arrays.values + own, head_dim, chunk.count);
    copy_tile<head_dim, block_threads>(to.dvalues, arrays.dvalues + own, head_dim, chunk.count);
  };
  // Those of a document of one chunk are 0.
  const int state_rows = chunk.state >= 0 ? side : 0;
  const auto fetch_states = [&](int head) {
    const std::int64_t own = state_offset(a, max(chunk.state, 0), head);
#pragma unroll
    for (int half = 0; half < head_parts; ++half) {
      const std::int64_t at = own + half * side * head_dim;
      copy_tile<head_dim, block_threads>(shared.states[half], arrays.states + at, head_dim, state_rows);
      copy_tile<head_dim, block_threads>(shared.dstates[half], arrays.dstates + at, head_dim, state_rows);
    }
  };
  for (int head = k_head * heads; head < (k_head + 1) * heads; ++head) {
    const std::int64_t own = row_place(a, chunk.begin, head);
    const HeadTiles& tiles = shared.tiles;
    const float decay = arrays.decays[own];
    __syncthreads();
    fetch_tiles(head);
    commit_copies();
    fetch_states(head);
    commit_copies();
    if (thread < side) {
      const bool inside = thread < chunk.count;  // beyond, nothing decays any more
      shared.total[thread] = arrays.totals[own + min(thread, chunk.count - 1)];
      shared.scales[thread] = inside ? arrays.scales[own + thread] : float4{0, 0, 0, 0};
      shared.rate[thread] = shared.scales[thread].x;
    }
    wait_copies<1>();
    publish();
    __syncthreads();

    {
      Sums x;
      find_rate_dots(shared, tiles);
      begin_products();
      row_products<head_dim>(x, group == 0 ? tiles.dout : tiles.dvalues, tiles.values);
      commit_products();
      wait_products<0>();
      settled(x);
#pragma unroll
      for (int n = 0; n < side / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = row_of(i), column = column_of(n, i);
          const bool seen = group == 0 ? column <= row : column < row;
          const float factor = group == 0 ? scale * shared.q_norm[row] : -shared.rate[row] * shared.k_norm[row];
          x[4 * n + i] =
              seen ? x[4 * n + i] * factor * shared.k_norm[column] * __expf(shared.total[row] - shared.total[column])
                   : 0;
        }
      Operand rounded;
      to_operand(rounded, x);
      store_operand(group == 0 ? shared.scores : shared.system, rounded);
    }
    wait_copies<0>();
    publish();
    __syncthreads();

    {
      Sums of_out, of_dr, of_values;
      begin_products();
      state_products(of_out, tiles.dout, shared.states, group);
      commit_products();
      state_products(of_dr, tiles.dvalues, shared.states, group);
      commit_products();
      state_products(of_values, tiles.values, shared.dstates, group);
      commit_products();
      find_state_dot(shared);
      wait_products<0>();
      settled(of_out);
      settled(of_dr);
      settled(of_values);
      float dot[2] = {0, 0};
#pragma unroll
      for (int n = 0; n < side / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float4 scales = shared.scales[row_of(i)];
          dq[4 * n + i] = fmaf(scales.z, of_out[4 * n + i], dq[4 * n + i]);
          by_row[4 * n + i] = fmaf(-scales.y, of_dr[4 * n + i], by_row[4 * n + i]);
          const float x = scales.w * of_values[4 * n + i];
          by_column[4 * n + i] += x;
          const float2 k = pair_at(shared.k + group * part_elements, row_of(i), column_of(n, 0));
          dot[i / 2] = fmaf(i % 2 ? k.y : k.x, x, dot[i / 2]);
        }
      put_dot(shared, of_state, group, dot);
    }
    const bf16_t *const k_half = shared.k + group * part_elements, *const q_half = shared.q + group * part_elements;
    begin_products();
#pragma unroll
    for (int k = 0; k < side / 16; ++k) {
      multiply_rows(dq, descriptor(shared.scores) + k * column_step, descriptor(k_half) + k * row_step, true);
      multiply_rows(by_row, descriptor(shared.system) + k * column_step, descriptor(k_half) + k * row_step, true);
    }
    transposed_products(by_column, shared.scores, q_half, true);
    transposed_products(by_column, shared.system, k_half, true);
    commit_products();
    wait_products<0>();
    settled(dq);
    settled(by_row);
    settled(by_column);
    float query[2] = {0, 0}, row_dot[2] = {0, 0}, column_dot[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < side / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 qs = pair_at(q_half, row_of(i), column_of(n, 0)), ks = pair_at(k_half, row_of(i), column_of(n, 0));
        const float q = i % 2 ? qs.y : qs.x, k = i % 2 ? ks.y : ks.x;
        query[i / 2] = fmaf(q, dq[4 * n + i], query[i / 2]);
        row_dot[i / 2] = fmaf(k, by_row[4 * n + i], row_dot[i / 2]);
        column_dot[i / 2] = fmaf(k, by_column[4 * n + i], column_dot[i / 2]);
      }
    put_dot(shared, of_query, group, query);
    put_dot(shared, of_row, group, row_dot);
    put_dot(shared, of_column, group, column_dot);
    __syncthreads();
    if (thread < warp) write_gates(shared, a, chunk, head, decay, before);
  }

  // Through the normalisation: with x the row, dx -= x <x, dx> / |x|^2.
#pragma unroll
  for (int n = 0; n < side / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = row_of(i), column = column_of(n, 0);
      const float2 qs = pair_at(shared.q + group * part_elements, row, column),
                   ks = pair_at(shared.k + group * part_elements, row, column);
      const float q_dot = shared.dot[of_query][0][row] + shared.dot[of_query][1][row];
      const float k_dot = shared.dot[of_row][0][row] + shared.dot[of_row][1][row] + shared.dot[of_column][0][row] +
                          shared.dot[of_column][1][row];
      const float q_norm = shared.q_norm[row], k_norm = shared.k_norm[row];
      dq[4 * n + i] -= q_norm * q_norm * q_dot * (i % 2 ? qs.y : qs.x);
      by_row[4 * n + i] += by_column[4 * n + i] - k_norm * k_norm * k_dot * (i % 2 ? ks.y : ks.x);
    }
  Sums result[1];
  bf16_t* const tile = group == 0 ? shared.scores : shared.system;  // the group's own warps' rows of it
#pragma unroll
  for (int i = 0; i < side / 2; ++i) result[0][i] = dq[i];
  store_tile<side>(rows_of(a.dq, chunk.begin, k_head) + group * side, a.dq.width, tile, result, 1, chunk.count);
#pragma unroll
  for (int i = 0; i < side / 2; ++i) result[0][i] = by_row[i];
  store_tile<side>(rows_of(a.dk, chunk.begin, k_head) + group * side, a.dk.width, tile, result, 1, chunk.count);
}

}  // namespace

void finish_gradients(cudaStream_t stream, const DeltaArguments& a, const DeltaArrays& arrays, const DeltaSize& size) {
  launch_chunks<GradientShared>(delta_gradient_kernel, "delta_gradient_kernel", delta_chunks(size) * a.k_heads,
                                block_threads, stream, a, arrays);
}

}  // namespace so::hopper
