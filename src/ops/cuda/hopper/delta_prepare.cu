// The first kernel of the gated delta rule in chunks: what depends on keys, queries, rates and decays alone, of all
// chunks at once (delta_chunks.h). A block does a chunk and key head, two of its value heads at a time.
#include "ops/cuda/hopper/delta_chunks.h"

namespace so::hopper {
namespace {

using namespace kernel;

constexpr int at_a_time = 2, system_pitch = side + 4;

struct PrepareShared {
  bf16_t k[side * head_dim], q[side * head_dim];
  bf16_t tile[at_a_time][part_elements];
  float system[at_a_time][side * system_pitch];  // A of the chunk, transposed
  float rate[at_a_time][side], total[at_a_time][side];
  float k_norm[side], q_norm[side];
};

// Two lanes add up the squares of a row of a tile, and write 1 / |row|. Rows beyond the document's are zeros.
__device__ void find_norms(float* norms, float* to, const bf16_t* tile, const DeltaArguments& a,
                           const DeltaChunk& chunk, int k_head) {
  const int row = static_cast<int>(threadIdx.x) / 2, part = static_cast<int>(threadIdx.x) % 2;
  const unsigned char* const bytes = reinterpret_cast<const unsigned char*>(tile + part * part_elements) + row * 128;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint4 piece = *reinterpret_cast<const uint4*>(bytes + (i ^ row % 8) * 16);
    const unsigned words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (const unsigned word : words) {
      const float x = unpack(word, 0), y = unpack(word, 1);
      sum = fmaf(x, x, fmaf(y, y, sum));
    }
  }
  const float norm = 1.0f / sqrtf(group_sum<2>(sum) + delta_norm_epsilon);
  if (part != 0) return;
  norms[row] = norm;
  if (to && row < chunk.count) to[static_cast<std::int64_t>(chunk.begin + row) * a.k_heads + k_head] = norm;
}

// One warp: rates, and sums of the logarithms of decays, of a value head; what the scans scale rows by.
__device__ void find_scales(PrepareShared& shared, int which, const DeltaArguments& a, const DeltaArrays& arrays,
                            const DeltaChunk& chunk, int head) {
  const int lane = static_cast<int>(threadIdx.x) % warp;
  float rate[2], total[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * lane + i;
    const std::int64_t at = (chunk.begin + row) * a.gate_width + head;
    rate[i] = row < chunk.count ? a.rate[at] : 0;
    total[i] = row < chunk.count ? a.decay[at] : 0;
  }
  total[1] += total[0];
  float before = total[1];
#pragma unroll
  for (int distance = 1; distance < warp; distance *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, before, distance);
    if (lane >= distance) before += other;
  }
  before = __shfl_up_sync(0xffffffffu, before, 1);
  if (lane == 0) before = 0;
  total[0] += before;
  total[1] += before;
  const float whole = __shfl_sync(0xffffffffu, total[1], warp - 1);
  const std::int64_t own = row_place(a, chunk.begin, head);
  if (lane == 0) arrays.decays[own] = __expf(whole);
  const float scale = rsqrtf(static_cast<float>(head_dim));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 2 * lane + i;
    shared.rate[which][row] = rate[i];
    shared.total[which][row] = total[i];
    if (row >= chunk.count) continue;
    if (arrays.totals) arrays.totals[own + row] = total[i];
    const float decay = __expf(total[i]);
    arrays.scales[own + row] = {rate[i], rate[i] * decay * shared.k_norm[row], scale * shared.q_norm[row] * decay,
                                shared.k_norm[row] * __expf(whole - total[i])};
  }
}

// A thread solves (1 + A) x = e_column, and writes the column of the inverse.
__device__ void invert_column(bf16_t* tile, const float* system, int column) {
  float x[side];
#pragma unroll
  for (int i = 0; i < side; ++i) x[i] = i == column ? 1 : 0;
#pragma unroll
  for (int m = 0; m < side - 1; ++m) {
    const float known = -x[m];
#pragma unroll
    for (int i = (m + 1) / 4 * 4; i < side; i += 4) {
      const float4 factors = *reinterpret_cast<const float4*>(system + m * system_pitch + i);
      if (i > m) x[i] = fmaf(factors.x, known, x[i]);
      if (i + 1 > m) x[i + 1] = fmaf(factors.y, known, x[i + 1]);
      if (i + 2 > m) x[i + 2] = fmaf(factors.z, known, x[i + 2]);
      x[i + 3] = fmaf(factors.w, known, x[i + 3]);
    }
  }
#pragma unroll
  for (int i = 0; i < side; ++i) tile[i * side + column] = __float2bfloat16_rn(x[i]);
}

__global__ void __launch_bounds__(group_threads, 2) delta_prepare_kernel(DeltaArguments a, DeltaArrays arrays) {
  extern __shared__ __align__(1024) unsigned char memory[];
  auto& shared = *reinterpret_cast<PrepareShared*>(memory);
  const int k_head = static_cast<int>(blockIdx.x) % a.k_heads, group = a.v_heads / a.k_heads;
  const DeltaChunk chunk = find_chunk(a, static_cast<int>(blockIdx.x) / a.k_heads);
  if (!chunk.any()) return;
  copy_tile<head_dim, group_threads>(shared.k, rows_of(a.k, chunk.begin, k_head), a.k.width, chunk.count);
  copy_tile<head_dim, group_threads>(shared.q, rows_of(a.q, chunk.begin, k_head), a.q.width, chunk.count);
  commit_copies();
  wait_copies<0>();
  publish();
  __syncthreads();

  Sums kk, qk;
  begin_products();
  row_products<head_dim>(kk, shared.k, shared.k);
  row_products<head_dim>(qk, shared.q, shared.k);
  commit_products();
  find_norms(shared.k_norm, arrays.k_norms, shared.k, a, chunk, k_head);
  find_norms(shared.q_norm, arrays.q_norms, shared.q, a, chunk, k_head);
  __syncthreads();
  wait_products<0>();
  settled(kk);
  settled(qk);

  const int thread = static_cast<int>(threadIdx.x), warp_number = thread / warp;
  const float scale = rsqrtf(static_cast<float>(head_dim));
  for (int first = 0; first < group; first += at_a_time) {
    if (const int which = warp_number; which < at_a_time && first + which < group)
      find_scales(shared, which, a, arrays, chunk, k_head * group + first + which);
    __syncthreads();
#pragma unroll
    for (int which = 0; which < at_a_time; ++which) {
      if (first + which >= group) break;
      Sums scores[1];
#pragma unroll
      for (int n = 0; n < side / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = row_of(i), column = column_of(n, i);
          const float decay = column <= row ? __expf(shared.total[which][row] - shared.total[which][column]) : 0;
          const float both = decay * shared.k_norm[column];
          if (column < row)
            shared.system[which][column * system_pitch + row] =
                kk[4 * n + i] * both * shared.k_norm[row] * shared.rate[which][row];
          scores[0][4 * n + i] = column <= row ? qk[4 * n + i] * both * shared.q_norm[row] * scale : 0;
        }
      const std::int64_t own = row_place(a, chunk.begin, k_head * group + first + which);
      store_tile<side>(arrays.scores + own * side, side, shared.tile[which], scores, 1, chunk.count);
    }
    __syncthreads();
    if (const int which = thread / side; first + which < group)
      invert_column(shared.tile[which], shared.system[which], thread % side);
    __syncthreads();
#pragma unroll
    for (int which = 0; which < at_a_time; ++which) {
      if (first + which >= group) break;
      auto* const to =
          reinterpret_cast<uint4*>(arrays.inverse + row_place(a, chunk.begin, k_head * group + first + which) * side);
      for (int i = thread; i < chunk.count * (side / 8); i += group_threads)
        to[i] = reinterpret_cast<const uint4*>(shared.tile[which])[i];
    }
    __syncthreads();
  }
}

}  // namespace

void prepare_chunks(cudaStream_t stream, const DeltaArguments& a, const DeltaArrays& arrays, const DeltaSize& size) {
  launch_chunks<PrepareShared>(delta_prepare_kernel, "delta_prepare_kernel", delta_chunks(size) * a.k_heads,
                               group_threads, stream, a, arrays);
}

DeltaArrays delta_arrays(const DeltaArguments& a, const DeltaSize& size, bool gradient) {
  const ChunkedDeltaScratch at(size, gradient);
  const auto bf16 = [&](std::size_t offset) { return reinterpret_cast<bf16_t*>(a.scratch + offset); };
  const auto f32 = [&](std::size_t offset) { return reinterpret_cast<float*>(a.scratch + offset); };
  DeltaArrays arrays{};
  arrays.inverse = bf16(at.inverse);
  arrays.scores = bf16(at.scores);
  arrays.scales = reinterpret_cast<float4*>(a.scratch + at.scales);
  arrays.decays = f32(at.decays);
  if (!gradient) return arrays;
  arrays.totals = f32(at.totals);
  arrays.q_norms = f32(at.q_norms);
  arrays.k_norms = f32(at.k_norms);
  arrays.values = bf16(at.values);
  arrays.dvalues = bf16(at.dvalues);
  arrays.states = bf16(at.states);
  arrays.dstates = bf16(at.dstates);
  return arrays;
}

}  // namespace so::hopper
