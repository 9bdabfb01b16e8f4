// Tiles of 64 rows as recurrences in chunks use them, the gated delta rule and state spaces. Included by .cu files
// only.
#pragma once

#include "ops/cuda/head_rows.h"
#include "ops/cuda/hopper/wgmma.h"

namespace so::hopper {

// Dimensions of queries and keys, in parts of 64.
inline constexpr int head_dim = 128, head_parts = head_dim / side;

__device__ inline bf16_t* rows_of(const HeadRows& heads, std::int64_t row, int head) {
  return static_cast<bf16_t*>(heads.at) + row * heads.width + head * heads.step;
}

// The row, within 64, of a lane's element i of sums, and the column of element 4 n + i.
__device__ inline int row_of(int i) {
  const int thread = thread_number();
  return thread / kernel::warp % 4 * 16 + thread % kernel::warp / 4 + i / 2 * 8;
}
__device__ inline int column_of(int n, int i) { return 8 * n + thread_number() % 4 * 2 + i % 2; }

__device__ inline float unpack(unsigned pair, int which) {
  return __uint_as_float(which == 0 ? pair << 16 : pair & 0xffff0000u);
}
// The element of an operand that is element 4 n + i of the sums it was made of.
__device__ inline float element(const Operand& from, int n, int i) {
  return unpack(from[n / 2][n % 2 * 2 + i / 2], i % 2);
}

// Writes the warp's 16 rows of an operand by way of a tile that nobody uses; `to` is the group's first row.
__device__ inline void write_rows(bf16_t* to, std::int64_t width, bf16_t* tile, const Operand& from) {
  const int thread = thread_number(), lane = thread % kernel::warp, first = thread / kernel::warp % 4 * 16;
  store_operand(tile, from);
  __syncwarp();
  const unsigned char* const bytes = reinterpret_cast<const unsigned char*>(tile);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first + i * 4 + lane / 8, piece = lane % 8;
    *reinterpret_cast<uint4*>(to + row * width + piece * 8) =
        *reinterpret_cast<const uint4*>(bytes + row * 128 + (piece ^ (row % 8)) * 16);
  }
  __syncwarp();
}
// Writes the transpose of an operand: the warp's 16 columns of the first `count` of 64 rows.
__device__ inline void write_transposed(bf16_t* to, std::int64_t width, bf16_t* tile, const Operand& from, int count) {
  const int thread = thread_number(), lane = thread % kernel::warp, first = thread / kernel::warp % 4 * 2;
  store_transposed(tile, from);
  __syncwarp();
  const unsigned char* const bytes = reinterpret_cast<const unsigned char*>(tile);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i * 16 + lane / 2, piece = first + lane % 2;
    if (row < count)
      *reinterpret_cast<uint4*>(to + row * width + piece * 8) =
          *reinterpret_cast<const uint4*>(bytes + row * 128 + (piece ^ (row % 8)) * 16);
  }
  __syncwarp();
}

// c (+)= S K^T of a state as operand with a tile of keys or queries: [64 of v_dim, 64 rows].
__device__ inline void state_products(Sums& c, const Operand (&state)[head_parts], const bf16_t* keys) {
#pragma unroll
  for (int part = 0; part < head_parts; ++part)
#pragma unroll
    for (int k = 0; k < side / 16; ++k)
      multiply_operand_columns(c, state[part][k], descriptor(keys + part * part_elements) + k * column_step,
                               part + k > 0);
}

// Two neighbouring elements of a tile, of an even column within 64.
__device__ inline float2 pair_at(const bf16_t* tile, int row, int column) {
  const unsigned pair = *reinterpret_cast<const unsigned*>(reinterpret_cast<const unsigned char*>(tile) + row * 128 +
                                                           (column / 8 ^ row % 8) * 16 + column % 8 * 2);
  return {unpack(pair, 0), unpack(pair, 1)};
}

// Runs a kernel with its shared memory.
template <class Shared, class Kernel, class... Arguments>
void launch_chunks(Kernel* kernel, const char* name, std::int64_t blocks, int threads, cudaStream_t stream,
                   const Arguments&... arguments) {
  SO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)));
  SO_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  kernel<<<so::kernel::blocks_for(blocks, 1), threads, sizeof(Shared), stream>>>(arguments...);
  SO_CUDA_LAUNCHED(name);
}

}  // namespace so::hopper
