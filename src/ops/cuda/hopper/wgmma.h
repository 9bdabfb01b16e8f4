// Hopper's matrix units as kernels of ours use them: products of 64 x 64 by a group of four warps, on tiles of bf16 in
// shared memory that are laid out as the units read them. [PTX ISA, wgmma.mma_async] Included by .cu files only.
//
// A tile has 64 rows of D elements, in D / 64 parts, each of 64 rows of 128 bytes whose 16-byte pieces are permuted:
// piece i of row r is at i ^ (r % 8). A part begins at a multiple of 1024 bytes.
#pragma once

#include "device/cuda/kernel.h"

namespace so::hopper {

using bf16_t = __nv_bfloat16;

inline constexpr int side = 64;                    // rows of a tile, and of a part's columns
inline constexpr int group_threads = 128;          // of the warps that multiply together
inline constexpr int part_elements = side * side;  // of a tile
inline constexpr int part_bytes = 2 * part_elements;

// The sums of a product: element 4 n + i of a lane is at row 16 (warp % 4) + lane / 4 + 8 (i / 2), column 8 n +
// 2 (lane % 4) + i % 2.
using Sums = float[side / 2];
// The same numbers as left operand of a product over their columns: [columns 16 c to 16 c + 15].
using Operand = unsigned[side / 16][4];

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// Returns the descriptor of a part in shared memory: address, 1024 bytes from eight rows to the next, pieces permuted
// over 128 bytes.
__device__ inline std::uint64_t descriptor(const bf16_t* part) {
  return (std::uint64_t{1} << 62) | (std::uint64_t{1024 >> 4} << 32) | (std::uint64_t{1024 >> 4} << 16) |
         ((shared_address(part) & 0x3ffff) >> 4);
}
// From 16 columns (rows) to the next, in a descriptor.
inline constexpr int column_step = 32 >> 4, row_step = 16 * 128 >> 4;

// Before the first product, and after registers that it reads or adds to have been written.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for all products but those of the last N commits. Sums may be touched after settled() alone.
template <int N>
__device__ inline void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// Keeps the compiler from moving what reads or writes the registers across this point.
template <int N>
__device__ inline void settled(float (&x)[N]) {
#pragma unroll
  for (float& value : x) asm volatile("" : "+f"(value)::"memory");
}
template <int PARTS>
__device__ inline void settled(Sums (&x)[PARTS]) {
#pragma unroll
  for (Sums& part : x) settled(part);
}
__device__ inline void settled(Operand& x) {
#pragma unroll
  for (auto& columns : x)
#pragma unroll
    for (unsigned& value : columns) asm volatile("" : "+r"(value)::"memory");
}
// Makes what this thread has written to shared memory visible to the matrix units; a barrier must follow.
__device__ inline void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#define SO_SUMS(c)                                                                                            \
  "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), \
      "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]),  \
      "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]), \
      "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
#define SO_MULTIPLY                                                                                              \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "

// c (+)= a b^T over 16 columns of a and b, both in shared memory.
__device__ inline void multiply(Sums& c, std::uint64_t a, std::uint64_t b, bool add) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; " SO_MULTIPLY "%32, %33, p, 1, 1, 0, 0;}"
               : SO_SUMS(c)
               : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
// c (+)= a b over 16 columns of a, in registers, and rows of b, in shared memory.
__device__ inline void multiply_operand(Sums& c, const unsigned (&a)[4], std::uint64_t b, bool add) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; " SO_MULTIPLY "{%32,%33,%34,%35}, %36, p, 1, 1, 1;}"
               : SO_SUMS(c)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}
// c (+)= a b^T over 16 columns of a, in registers, and of b, in shared memory.
__device__ inline void multiply_operand_columns(Sums& c, const unsigned (&a)[4], std::uint64_t b, bool add) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; " SO_MULTIPLY "{%32,%33,%34,%35}, %36, p, 1, 1, 0;}"
               : SO_SUMS(c)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}
// c (+)= a b over 16 columns of a and rows of b, both in shared memory.
__device__ inline void multiply_rows(Sums& c, std::uint64_t a, std::uint64_t b, bool add) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; " SO_MULTIPLY "%32, %33, p, 1, 1, 0, 1;}"
               : SO_SUMS(c)
               : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
// c (+)= a^T b over 16 rows of a and b, both in shared memory.
__device__ inline void multiply_transposed(Sums& c, std::uint64_t a, std::uint64_t b, bool add) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; " SO_MULTIPLY "%32, %33, p, 1, 1, 1, 1;}"
               : SO_SUMS(c)
               : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
#undef SO_MULTIPLY
#undef SO_SUMS

// c = a b^T of tiles.
template <int D>
__device__ inline void row_products(Sums& c, const bf16_t* a, const bf16_t* b) {
#pragma unroll
  for (int part = 0; part < D / side; ++part) {
    const std::uint64_t left = descriptor(a + part * part_elements), right = descriptor(b + part * part_elements);
#pragma unroll
    for (int k = 0; k < side / 16; ++k) multiply(c, left + k * column_step, right + k * column_step, part + k > 0);
  }
}
// c (+)= a b, b a tile.
template <int D>
__device__ inline void add_products(Sums (&c)[D / side], const Operand& a, const bf16_t* b, bool add = true) {
#pragma unroll
  for (int part = 0; part < D / side; ++part) {
    const std::uint64_t right = descriptor(b + part * part_elements);
#pragma unroll
    for (int k = 0; k < side / 16; ++k) multiply_operand(c[part], a[k], right + k * row_step, add || k > 0);
  }
}

// c (+)= a^T b of tiles of 64 columns.
__device__ inline void transposed_products(Sums& c, const bf16_t* a, const bf16_t* b, bool add) {
  const std::uint64_t left = descriptor(a), right = descriptor(b);
#pragma unroll
  for (int k = 0; k < side / 16; ++k) multiply_transposed(c, left + k * row_step, right + k * row_step, add || k > 0);
}

__device__ inline unsigned pack(float x, float y) {
  const __nv_bfloat162 p = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const unsigned*>(&p);
}
__device__ inline void to_operand(Operand& to, const Sums& from) {
#pragma unroll
  for (int c = 0; c < side / 16; ++c)
#pragma unroll
    for (int i = 0; i < 4; ++i) to[c][i] = pack(from[8 * c + 2 * i], from[8 * c + 2 * i + 1]);
}

// The thread's number, of which the compiler knows nothing: what is computed from it is not kept over loops in
// registers that the sums need.
__device__ inline int thread_number() {
  int thread = static_cast<int>(threadIdx.x);
  asm volatile("" : "+r"(thread));
  return thread;
}

// Writes the group's sums, as operand, into a tile of 64 columns.
__device__ inline void store_operand(bf16_t* tile, const Operand& from) {
  const int thread = thread_number(), lane = thread % kernel::warp, matrix = lane / 8;
  const int row = thread / kernel::warp % 4 * 16 + matrix % 2 * 8 + lane % 8;
#pragma unroll
  for (int c = 0; c < side / 16; ++c) {
    const unsigned to = shared_address(tile) + row * 128 + ((2 * c + matrix / 2) ^ (row % 8)) * 16;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(from[c][0]),
                 "r"(from[c][1]), "r"(from[c][2]), "r"(from[c][3])
                 : "memory");
  }
}

// Reads such a tile.
__device__ inline void load_operand(Operand& to, const bf16_t* tile) {
  const int thread = thread_number(), lane = thread % kernel::warp, matrix = lane / 8;
  const int row = thread / kernel::warp % 4 * 16 + matrix % 2 * 8 + lane % 8;
#pragma unroll
  for (int c = 0; c < side / 16; ++c) {
    const unsigned from = shared_address(tile) + row * 128 + ((2 * c + matrix / 2) ^ (row % 8)) * 16;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[c][0]), "=r"(to[c][1]), "=r"(to[c][2]), "=r"(to[c][3])
                 : "r"(from)
                 : "memory");
  }
}

// Writes the transpose of the group's sums, as operand, into a tile of 64 columns, of which each warp has 16.
__device__ inline void store_transposed(bf16_t* tile, const Operand& from) {
  const int thread = thread_number(), lane = thread % kernel::warp, matrix = lane / 8;
  const int piece = thread / kernel::warp % 4 * 2 + matrix % 2, row = matrix / 2 * 8 + lane % 8;
#pragma unroll
  for (int c = 0; c < side / 16; ++c) {
    const unsigned to = shared_address(tile) + (16 * c + row) * 128 + (piece ^ (row % 8)) * 16;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(from[c][0]),
                 "r"(from[c][1]), "r"(from[c][2]), "r"(from[c][3])
                 : "memory");
  }
}
// Reads such a tile: `to` is its transpose.
__device__ inline void load_transposed(Operand& to, const bf16_t* tile) {
  const int thread = thread_number(), lane = thread % kernel::warp, matrix = lane / 8;
  const int piece = thread / kernel::warp % 4 * 2 + matrix % 2, row = matrix / 2 * 8 + lane % 8;
#pragma unroll
  for (int c = 0; c < side / 16; ++c) {
    const unsigned from = shared_address(tile) + (16 * c + row) * 128 + (piece ^ (row % 8)) * 16;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[c][0]), "=r"(to[c][1]), "=r"(to[c][2]), "=r"(to[c][3])
                 : "r"(from)
                 : "memory");
  }
}

// Copies `count` (of 64) rows of D elements into a tile, in the background, by THREADS threads; the rest becomes zeros.
template <int D, int THREADS>
__device__ inline void copy_tile(bf16_t* to, const bf16_t* from, std::int64_t width, int count) {
  constexpr int pieces = D / 8, rows = THREADS / pieces;
  static_assert(rows % 8 == 0);
  const int thread = thread_number(), row = thread / pieces, piece = thread % pieces;
  const unsigned at = shared_address(to) + piece / 8 * part_bytes + row * 128 + ((piece % 8) ^ (row % 8)) * 16;
  const bf16_t* source = from + row * width + piece * 8;
#pragma unroll
  for (int r = 0; r < side; r += rows, source += rows * width) {
    const bool inside = row + r < count;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at + r * 128), "l"(inside ? source : from),
                 "r"(inside ? 16 : 0)
                 : "memory");
  }
}
// One float, or zero.
__device__ inline void copy_float(float* to, const float* from, bool inside) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(inside ? 4 : 0)
               : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for this thread's copies but those of the last N commits.
template <int N>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Waits for the other warps of the group; each group of a block has its number.
__device__ inline void group_barrier(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(group_threads) : "memory");
}

// Writes the first `count` (of 64) rows of sums times a factor, rounded, by way of a tile that nobody uses, so that
// memory is written 16 bytes at a time. `to` is the first row's.
template <int D>
__device__ inline void store_tile(bf16_t* to, std::int64_t width, bf16_t* tile, const Sums (&sums)[D / side],
                                  float factor, int count) {
  const int thread = thread_number(), lane = thread % kernel::warp;
  const int first = thread / kernel::warp % 4 * 16;  // the warp's rows
  unsigned char* const bytes = reinterpret_cast<unsigned char*>(tile) + first * 128;
#pragma unroll
  for (int part = 0; part < D / side; ++part)
#pragma unroll
    for (int n = 0; n < 8; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        *reinterpret_cast<__nv_bfloat162*>(bytes + part * part_bytes + (lane / 4 + 8 * half) * 128 +
                                           (n ^ (lane / 4)) * 16 + lane % 4 * 4) =
            __floats2bfloat162_rn(sums[part][4 * n + 2 * half] * factor, sums[part][4 * n + 2 * half + 1] * factor);
  __syncwarp();
#pragma unroll
  for (int i = lane; i < 16 * (D / 8); i += kernel::warp) {
    const int row = i / (D / 8), piece = i % (D / 8);
    if (first + row < count)
      *reinterpret_cast<uint4*>(to + (first + row) * width + piece * 8) =
          *reinterpret_cast<const uint4*>(bytes + piece / 8 * part_bytes + row * 128 + ((piece % 8) ^ (row % 8)) * 16);
  }
  __syncwarp();
}

}  // namespace so::hopper
