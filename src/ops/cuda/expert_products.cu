#include "device/cuda/kernel.h"
#include "ops/cuda/expert_products.h"

namespace so {
namespace {

using namespace kernel;

constexpr int tile = 64;   // rows and columns of a block's part of a product
constexpr int depth = 16;  // of what is summed over, at a time
constexpr int threads = 256;
constexpr int across = tile / 4;  // a thread has 4 x 4 elements, `across` columns apart

// Element (i, k) of a is a[i * step + k] if its rows lie along k, else a[k * step + i]; b likewise with (j, k).
template <class T>
struct Operand {
  const T* data;
  std::int64_t step;
};

// The operand's elements (first..first + tile, k..k + depth), 0 beyond its ends. Neighbouring threads read neighbours.
template <bool ALONG_INNER, class T>
__device__ inline void fetch_tile(float (&to)[depth][tile + 4], Operand<T> from, std::int64_t first, std::int64_t count,
                                  std::int64_t k, std::int64_t inner) {
#pragma unroll
  for (int e = threadIdx.x; e < tile * depth; e += threads) {
    const int i = ALONG_INNER ? e / depth : e % tile, l = ALONG_INNER ? e % depth : e / tile;
    float value = 0;
    if (first + i < count && k + l < inner)
      value = to_float(from.data[ALONG_INNER ? (first + i) * from.step + k + l : (k + l) * from.step + first + i]);
    to[l][i] = value;
  }
}

// The tile of out [rows, columns], whose rows are `columns` apart, that begins at (row, column).
template <class G, class T, bool A_INNER, bool B_INNER>
__device__ void multiply_tile(G* out, Operand<T> a, Operand<T> b, std::int64_t row, std::int64_t column,
                              std::int64_t rows, std::int64_t columns, std::int64_t inner, bool add) {
  __shared__ float as[depth][tile + 4], bs[depth][tile + 4];
  const int x = threadIdx.x % across, y = threadIdx.x / across;
  float sums[4][4] = {};
  for (std::int64_t k = 0; k < inner; k += depth) {
    fetch_tile<A_INNER>(as, a, row, rows, k, inner);
    fetch_tile<B_INNER>(bs, b, column, columns, k, inner);
    __syncthreads();
#pragma unroll
    for (int l = 0; l < depth; ++l)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] = fmaf(as[l][y * 4 + i], bs[l][x + j * across], sums[i][j]);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const std::int64_t at_row = row + y * 4 + i, at_column = column + x + j * across;
      if (at_row >= rows || at_column >= columns) continue;
      G* const to = out + at_row * columns + at_column;
      *to = from_float<G>(add ? to_float(*to) + sums[i][j] : sums[i][j]);
    }
}

// Which expert's tile of rows is the slot-th of all experts' tiles: `first` and `last` of the rows that it may have.
// Every warp of a block finds it for itself, 32 experts at a time. False: there are fewer tiles.
struct RowTile {
  std::int64_t expert, first, last;
};
__device__ inline bool find_tile(RowTile& found, const std::int32_t* offsets, std::int64_t experts, std::int64_t slot) {
  const int lane = threadIdx.x % warp;
  for (std::int64_t begin = 0; begin < experts; begin += warp) {
    const std::int64_t expert = begin + lane;
    const std::int64_t first = expert < experts ? offsets[expert] : 0,
                       last = expert < experts ? offsets[expert + 1] : 0;
    const int tiles = static_cast<int>((last - first + tile - 1) / tile);
    int before = tiles;  // becomes the sum over lanes up to this one
#pragma unroll
    for (int step = 1; step < warp; step *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, before, step);
      if (lane >= step) before += other;
    }
    const unsigned beyond = __ballot_sync(0xffffffffu, slot < before);
    if (beyond != 0) {
      const int winner = __ffs(static_cast<int>(beyond)) - 1;
      const std::int64_t within = slot - (before - tiles);
      found.expert = begin + winner;
      found.first = __shfl_sync(0xffffffffu, first + within * tile, winner);
      found.last = __shfl_sync(0xffffffffu, last, winner);
      return true;
    }
    slot -= __shfl_sync(0xffffffffu, before, warp - 1);
  }
  return false;
}

// Grid: x over as many tiles of rows as there may be, which can be more than its other dimensions take, y over columns.
template <class T, bool TRANSPOSED>
__global__ void __launch_bounds__(threads) rows_kernel(T* out, const T* a, const T* w, const std::int32_t* offsets,
                                                       std::int64_t experts, std::int64_t columns, std::int64_t inner) {
  RowTile t;
  if (!find_tile(t, offsets, experts, blockIdx.x)) return;
  const Operand<T> weight{w + t.expert * columns * inner, TRANSPOSED ? inner : columns};
  multiply_tile<T, T, true, TRANSPOSED>(out, {a, inner}, weight, t.first, static_cast<std::int64_t>(blockIdx.y) * tile,
                                        t.last, columns, inner, false);
}

// Grid: x over columns, y over rows, z over experts.
template <class G, class T>
__global__ void __launch_bounds__(threads) weights_kernel(G* out, const T* a, const T* b, const std::int32_t* offsets,
                                                          std::int64_t rows, std::int64_t columns, bool add) {
  const std::int64_t expert = blockIdx.z, first = offsets[expert], count = offsets[expert + 1] - first;
  multiply_tile<G, T, false, false>(out + expert * rows * columns, {a + first * rows, rows},
                                    {b + first * columns, columns}, static_cast<std::int64_t>(blockIdx.y) * tile,
                                    static_cast<std::int64_t>(blockIdx.x) * tile, rows, columns, count, add);
}

constexpr int clear_blocks = 32;  // an expert

// Grid: x over pieces of a matrix, y over experts.
template <class G>
__global__ void __launch_bounds__(threads) clear_kernel(G* out, const std::int32_t* offsets, std::int64_t elements) {
  const std::int64_t expert = blockIdx.y;
  if (offsets[expert] != offsets[expert + 1]) return;
  G* const matrix = out + expert * elements;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x; i < elements;
       i += clear_blocks * threads)
    matrix[i] = from_float<G>(0.0f);
}

// The experts and tiles of a product have to fit into a grid's second and third dimension.
unsigned grid_limited(std::int64_t blocks) {
  SO_CHECK(blocks > 0 && blocks < 65536, "{} tiles or experts", blocks);
  return static_cast<unsigned>(blocks);
}
std::int64_t tiles_of(std::int64_t size) { return (size + tile - 1) / tile; }

}  // namespace

void plain_expert_rows(cudaStream_t stream, Tensor out, Tensor a, Tensor w, bool transposed, Tensor offsets) {
  if (out.size() == 0) return;
  const std::int64_t experts = w.dim(0), rows = a.dim(0), inner = a.dim(1), columns = out.dim(1);
  // Each expert's last tile may be a part.
  const std::int64_t slots = rows / tile + std::min(rows, experts);
  with_type(a.dtype(), [&]<class T> {
    const auto kernel = transposed ? rows_kernel<T, true> : rows_kernel<T, false>;
    const dim3 grid(blocks_for(slots, 1), grid_limited(tiles_of(columns)));
    kernel<<<grid, threads, 0, stream>>>(static_cast<T*>(out.data()), static_cast<const T*>(a.data()),
                                         static_cast<const T*>(w.data()), offsets.as<std::int32_t>(), experts, columns,
                                         inner);
  });
  SO_CUDA_LAUNCHED("rows of experts");
}

void plain_expert_weights(cudaStream_t stream, Tensor out, Tensor a, Tensor b, Tensor offsets, Accumulate mode) {
  if (out.size() == 0) return;
  const std::int64_t experts = out.dim(0), rows = out.dim(1), columns = out.dim(2);
  const dim3 grid(blocks_for(columns, tile), grid_limited(tiles_of(rows)), grid_limited(experts));
  with_type(a.dtype(), [&]<class T> {
    with_type(out.dtype(), [&]<class G> {
      weights_kernel<<<grid, threads, 0, stream>>>(static_cast<G*>(out.data()), static_cast<const T*>(a.data()),
                                                   static_cast<const T*>(b.data()), offsets.as<std::int32_t>(), rows,
                                                   columns, mode == Accumulate::add);
    });
  });
  SO_CUDA_LAUNCHED("weights of experts");
}

void clear_without_rows(cudaStream_t stream, Tensor out, Tensor offsets) {
  if (out.size() == 0) return;
  const dim3 grid(clear_blocks, grid_limited(out.dim(0)));
  with_type(out.dtype(), [&]<class G> {
    clear_kernel<<<grid, threads, 0, stream>>>(static_cast<G*>(out.data()), offsets.as<std::int32_t>(),
                                               out.size() / out.dim(0));
  });
  SO_CUDA_LAUNCHED("experts without rows");
}

}  // namespace so
