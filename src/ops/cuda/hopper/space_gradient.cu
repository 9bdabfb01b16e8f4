// The last kernel of a state space's gradient: those of B, C and the decays, of all chunks at once, from the states and
// their gradients that the kernels before have kept (space_chunks.h). A block does a chunk and group with two groups of
// warps: each takes one head of a pair for the products of rows, and half of k_dim for those with states.
//
// With D the rows of dout, S the state before a chunk, dS' the gradient of that after it, and N the lower part of
// exp(G_i - G_j) s_j D X^T:
//   dC = sum over heads of N B + exp(G) D S^T      dB = sum over heads of N^T C + s exp(G' - G) X dS'^T
// A row's decay is in all that goes from before it to it or behind it: from a row j < n to a row i >= n, N_ij C_i B_j;
// from S to a row i >= n, <C_i, exp(G_i) (D S^T)_i>; from a row j < n to the state after the chunk,
// <B_j, s_j exp(G' - G_j) (X dS'^T)_j>; and from state to state, exp(G') <S, dS'>.
#include "ops/cuda/hopper/space_chunks.h"

namespace so::hopper {
namespace {

using namespace kernel;

constexpr int pair = 2, block_threads = pair * group_threads, warps = block_threads / warp,
              group_warps = group_threads / warp;

struct PairRows {
  bf16_t x[pair][part_elements], dout[pair][part_elements];
};
struct ChunkStates {
  bf16_t before[side * head_dim], dafter[side * head_dim];  // S and dS'
};
struct ProjectionsShared {
  bf16_t b[side * head_dim], c[side * head_dim];
  PairRows rows[2];       // of a pair of heads, and of the next
  ChunkStates states[2];  // of a head, and of the next
  bf16_t sums[pair][part_elements];
  float total[pair][side], step[pair][side];
  float to_row[pair][side];                            // sums of N_ij C_i B_j over the rows j before
  float from_row[pair][group_warps][side];             // over the rows i behind, in parts
  float from_state[pair][side], to_state[pair][side];  // of one head, each half of k_dim
  float state_dots[warps];
};

// <S, dS'>, one sum a warp.
__device__ void find_state_dot(ProjectionsShared& shared, const ChunkStates& states) {
  const auto* const s = reinterpret_cast<const uint4*>(states.before);
  const auto* const ds = reinterpret_cast<const uint4*>(states.dafter);
  float sum = 0;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < space_elements / 8; i += block_threads) {
    const uint4 x = s[i], y = ds[i];
    const unsigned left[4] = {x.x, x.y, x.z, x.w}, right[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int j = 0; j < 4; ++j)
      sum += unpack(left[j], 0) * unpack(right[j], 0) + unpack(left[j], 1) * unpack(right[j], 1);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % warp == 0) shared.state_dots[threadIdx.x / warp] = sum;
}

// The products D X^T of a head: `products` becomes N, which is added to `sums`; leaves what its decays need of it.
__device__ void find_row_products(ProjectionsShared& shared, Sums& products, Sums& sums, const Sums& cb, int which) {
  const float* const step = shared.step[which];
  mask_products(products, shared.total[which], [&](int column) { return step[column]; });
  const int first = column_of(0, 0), first_row = row_of(0), lane = thread_number() % warp;
  float rows[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < side / 8; ++n)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float column_sum = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float x = products[4 * n + i + 2 * half];
        sums[4 * n + i + 2 * half] += x;
        const float y = first_row + 8 * half > first + 8 * n + i ? x * cb[4 * n + i + 2 * half] : 0;
        rows[half] += y;
        column_sum += y;
      }
#pragma unroll
      for (int distance = 4; distance < warp; distance *= 2)
        column_sum += __shfl_xor_sync(0xffffffffu, column_sum, distance);
      if (lane < 4) shared.from_row[which][thread_number() / warp % group_warps][first + 8 * n + i] = column_sum;
    }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = group_sum<4>(rows[half]);
    if (lane % 4 == 0) shared.to_row[which][first_row + 8 * half] = sum;
  }
}

// sums += f(row) products; `dots`: of what is added with the rows of a tile of 64 columns.
template <class F>
__device__ void add_scaled_rows(Sums& sums, const Sums& products, const bf16_t* tile, float* dots, const F& f) {
  const int first = column_of(0, 0), first_row = row_of(0);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + 8 * half;
    const float factor = f(row);
    float dot = 0;
#pragma unroll
    for (int n = 0; n < side / 8; ++n) {
      const float2 with = pair_at(tile, row, first + 8 * n);
      const float x = factor * products[4 * n + 2 * half], y = factor * products[4 * n + 2 * half + 1];
      sums[4 * n + 2 * half] += x;
      sums[4 * n + 2 * half + 1] += y;
      dot = fmaf(with.x, x, fmaf(with.y, y, dot));
    }
    dot = group_sum<4>(dot);
    if (thread_number() % 4 == 0) dots[row] = dot;
  }
}

// One warp, two rows a lane: the gradients of a head's decays.
__device__ void write_decays(const ProjectionsShared& shared, const SpaceArguments& a, int which, int begin, int count,
                             int head) {
  const int lane = static_cast<int>(threadIdx.x) % warp;
  float behind[2], written[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * lane + i;
    float from_row = 0;
#pragma unroll
    for (int j = 0; j < group_warps; ++j) from_row += shared.from_row[which][j][row];
    behind[i] = shared.to_row[which][row] - from_row + (shared.from_state[0][row] + shared.from_state[1][row]);
    written[i] = shared.to_state[0][row] + shared.to_state[1][row];
  }
  // From row n on, and before it.
  float after = behind[0] + behind[1], before = written[0] + written[1];
#pragma unroll
  for (int distance = 1; distance < warp; distance *= 2) {
    const float later = __shfl_down_sync(0xffffffffu, after, distance);
    if (lane + distance < warp) after += later;
    const float earlier = __shfl_up_sync(0xffffffffu, before, distance);
    if (lane >= distance) before += earlier;
  }
  after = __shfl_down_sync(0xffffffffu, after, 1);
  before = __shfl_up_sync(0xffffffffu, before, 1);
  if (lane == warp - 1) after = 0;
  if (lane == 0) before = 0;
  float states = 0;
#pragma unroll
  for (int i = 0; i < warps; ++i) states += shared.state_dots[i];
  const float through = __expf(shared.total[which][side - 1]) * states;
  const float ddecay[2] = {after + behind[1] + behind[0] + before + through,
                           after + behind[1] + (before + written[0]) + through};
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if (const int row = 2 * lane + i; row < count) a.ddecay[(begin + row) * a.gate_width + head] = ddecay[i];
}

__global__ void __launch_bounds__(block_threads, 1) space_projections_kernel(SpaceArguments a, SpaceArrays arrays) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<ProjectionsShared*>(memory);
  const int group = static_cast<int>(blockIdx.x) % a.groups, heads = a.heads / a.groups;
  const SpacePiece chunk = find_piece<side>(a, static_cast<int>(blockIdx.x) / a.groups);
  if (chunk.rows <= 0) return;
  const int half = thread_number() / group_threads;  // the group of warps
  copy_tile<head_dim, block_threads>(shared.b, rows_of(a.b, chunk.begin, group), a.b.width, chunk.rows);
  copy_tile<head_dim, block_threads>(shared.c, rows_of(a.c, chunk.begin, group), a.c.width, chunk.rows);
  // Of a pair of heads, of which the second may not be there.
  const auto fetch_rows = [&](int first) {
    PairRows& to = shared.rows[first / pair % 2];
#pragma unroll
    for (int which = 0; which < pair; ++which) {
      const int head = group * heads + min(first + which, heads - 1), rows = first + which < heads ? chunk.rows : 0;
      copy_tile<side, block_threads>(to.x[which], rows_of(a.x, chunk.begin, head), a.x.width, rows);
      copy_tile<side, block_threads>(to.dout[which], rows_of(a.dout, chunk.begin, head), a.dout.width, rows);
    }
  };
  // Those of a document of one chunk are 0.
  const int state_rows = chunk.document_rows > side ? side : 0;
  const auto fetch_states = [&](int head) {
    ChunkStates& to = shared.states[head % 2];
    const std::int64_t at = state_rows > 0 ? chunk_state(a, chunk.document, chunk.number, group * heads + head) : 0;
    copy_tile<head_dim, block_threads>(to.before, arrays.states + at, head_dim, state_rows);
    copy_tile<head_dim, block_threads>(to.dafter, arrays.dstates + at, head_dim, state_rows);
  };
  commit_copies();
  fetch_rows(0);
  commit_copies();
  fetch_states(0);
  commit_copies();

  Sums cb, sums, db, dc;
#pragma unroll
  for (int i = 0; i < side / 2; ++i) sums[i] = db[i] = dc[i] = 0;
  const bf16_t *const b_half = shared.b + half * part_elements, *const c_half = shared.c + half * part_elements;
  wait_copies<2>();
  publish();
  __syncthreads();
  begin_products();
  row_products<head_dim>(cb, shared.c, shared.b);
  commit_products();
  wait_products<0>();
  settled(cb);
  for (int first = 0; first < heads; first += pair) {
    __syncthreads();
    if (const int which = static_cast<int>(threadIdx.x) / warp; which < pair)
      find_totals(shared.total[which], shared.step[which], a, chunk.begin, first + which < heads ? chunk.rows : 0,
                  group * heads + min(first + which, heads - 1));
    if (first + pair < heads) fetch_rows(first + pair);
    commit_copies();
    wait_copies<2>();  // but for the states and the next rows
    publish();
    __syncthreads();
    const PairRows& rows = shared.rows[first / pair % 2];
    {
      Sums products;
      begin_products();
      row_products<side>(products, rows.dout[half], rows.x[half]);
      commit_products();
      wait_products<0>();
      settled(products);
      find_row_products(shared, products, sums, cb, half);
    }
#pragma unroll 1
    for (int head = first; head < min(first + pair, heads); ++head) {
      wait_copies<0>();
      publish();
      __syncthreads();
      if (head + 1 < heads) fetch_states(head + 1);
      commit_copies();
      const int which = head - first;
      const ChunkStates& states = shared.states[head % 2];
      const float* const total = shared.total[which];
      const float* const step = shared.step[which];
      const float whole = total[side - 1];
      Sums by_state, by_dstate;
      const std::uint64_t dout = descriptor(rows.dout[which]), x = descriptor(rows.x[which]),
                          state = descriptor(states.before + half * part_elements),
                          dstate = descriptor(states.dafter + half * part_elements);
      begin_products();
#pragma unroll
      for (int k = 0; k < side / 16; ++k) multiply_rows(by_state, dout + k * column_step, state + k * row_step, k > 0);
#pragma unroll
      for (int k = 0; k < side / 16; ++k) multiply_rows(by_dstate, x + k * column_step, dstate + k * row_step, k > 0);
      commit_products();
      find_state_dot(shared, states);
      wait_products<0>();
      settled(by_state);
      settled(by_dstate);
      add_scaled_rows(dc, by_state, c_half, shared.from_state[half], [&](int row) { return __expf(total[row]); });
      add_scaled_rows(db, by_dstate, b_half, shared.to_state[half],
                      [&](int row) { return step[row] * __expf(whole - total[row]); });
      __syncthreads();
      if (threadIdx.x < warp) write_decays(shared, a, which, chunk.begin, chunk.rows, group * heads + head);
    }
  }

  Operand rounded;
  to_operand(rounded, sums);
  store_operand(shared.sums[half], rounded);
  publish();
  __syncthreads();
  begin_products();
#pragma unroll
  for (int which = 0; which < pair; ++which) {
#pragma unroll
    for (int k = 0; k < side / 16; ++k)
      multiply_rows(dc, descriptor(shared.sums[which]) + k * column_step, descriptor(b_half) + k * row_step, true);
    transposed_products(db, shared.sums[which], c_half, true);
  }
  commit_products();
  wait_products<0>();
  settled(dc);
  settled(db);
  Sums result[1];
  bf16_t* const tile = shared.rows[0].x[half];  // the group's own warps' rows of it
#pragma unroll
  for (int i = 0; i < side / 2; ++i) result[0][i] = dc[i];
  store_tile<side>(rows_of(a.dc, chunk.begin, group) + half * side, a.dc.width, tile, result, 1, chunk.rows);
#pragma unroll
  for (int i = 0; i < side / 2; ++i) result[0][i] = db[i];
  store_tile<side>(rows_of(a.db, chunk.begin, group) + half * side, a.db.width, tile, result, 1, chunk.rows);
}

}  // namespace

void finish_projections(cudaStream_t stream, const SpaceArguments& a, const SpaceArrays& arrays,
                        const StateSpaceSize& size) {
  launch_chunks<ProjectionsShared>(space_projections_kernel, "space_projections_kernel", space_chunks(size) * a.groups,
                                   block_threads, stream, a, arrays);
}

}  // namespace so::hopper
