#include "device/cuda/kernel.h"
#include "ops/checks.h"
#include "ops/cuda/column_sums.h"
#include "ops/cuda/cuda_ops.h"

namespace so {
namespace {

using namespace kernel;

constexpr int lanes = 32;  // rows at a time, for 32 columns a block

template <class G>
__global__ void __launch_bounds__(warp* lanes)
    finish_kernel(G* out, const float* partial, std::int64_t count, std::int64_t columns, bool add) {
  __shared__ float sums[lanes][warp + 1];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * warp + threadIdx.x;
  float sum = 0;
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t row = threadIdx.y; row < count; row += lanes) sum += partial[row * columns + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  // Warp y adds column y of the block.
  const std::int64_t mine = static_cast<std::int64_t>(blockIdx.x) * warp + threadIdx.y;
  sum = warp_sum(sums[threadIdx.x][threadIdx.y]);
  if (threadIdx.x == 0 && mine < columns) out[mine] = from_float<G>(add ? to_float(out[mine]) + sum : sum);
}

// A block sums a piece of rows of 32 columns times its lanes.
template <class T>
__global__ void __launch_bounds__(warp* lanes)
    piece_kernel(float* partial, const T* dy, std::int64_t rows, std::int64_t columns, std::int64_t rows_per_piece) {
  __shared__ float sums[lanes][warp + 1];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * warp + threadIdx.x;
  const std::int64_t begin = blockIdx.y * rows_per_piece, end = min(rows, begin + rows_per_piece);
  float sum = 0;
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t row = begin + threadIdx.y; row < end; row += lanes) sum += to_float(dy[row * columns + column]);
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  const std::int64_t mine = static_cast<std::int64_t>(blockIdx.x) * warp + threadIdx.y;
  sum = warp_sum(sums[threadIdx.x][threadIdx.y]);
  if (threadIdx.x == 0 && mine < columns) partial[blockIdx.y * columns + mine] = sum;
}

constexpr int threads = 256;

template <class T, class B>
__global__ void __launch_bounds__(threads)
    bias_kernel(T* out, const B* bias, std::int64_t count, std::int64_t columns, bool add) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i < count) out[i] = from_float<T>(to_float(bias[i % columns]) + (add ? to_float(out[i]) : 0.0f));
}

}  // namespace

void add_bias_rows(cudaStream_t stream, Tensor out, Tensor bias, Accumulate mode) {
  if (out.size() == 0) return;
  with_type(out.dtype(), [&]<class T> {
    with_type(bias.dtype(), [&]<class B> {
      bias_kernel<<<blocks_for(out.size(), threads), threads, 0, stream>>>(
          static_cast<T*>(out.data()), static_cast<const B*>(bias.data()), out.size(), bias.size(),
          mode == Accumulate::add);
    });
  });
  SO_CUDA_LAUNCHED("bias");
}

void finish_column_sums(cudaStream_t stream, Tensor out, const float* partial, std::int64_t count, std::int64_t columns,
                        Accumulate mode) {
  if (columns == 0) return;
  const dim3 block(warp, lanes);
  with_type(out.dtype(), [&]<class G> {
    finish_kernel<<<blocks_for(columns, warp), block, 0, stream>>>(static_cast<G*>(out.data()), partial, count, columns,
                                                                   mode == Accumulate::add);
  });
  SO_CUDA_LAUNCHED("column sums");
}

void CudaOps::linear_grad_bias(Stream& stream, Tensor dbias, Tensor dy, Accumulate mode) {
  const char* op = "linear_grad_bias";
  SO_CHECK(dy.rank() == 2, "{}: dy is {}", op, shape_string(dy.shape()));
  expect_compute_dtype(op, "dy", dy.dtype());
  const std::int64_t rows = dy.dim(0), columns = dy.dim(1);
  expect_tensor(op, "dy", dy, dy.dtype(), {rows, columns});
  expect_gradient(op, "dbias", dbias, dy.dtype(), {columns});
  const cudaStream_t on = enter(stream);
  if (columns == 0) return;
  // Pieces of 512 rows, longer if the scratch does not hold their sums.
  std::int64_t rows_per_piece = 512;
  const auto count = [&] { return (rows + rows_per_piece - 1) / rows_per_piece; };
  while (count() > 1 && static_cast<std::size_t>(count() * columns) * sizeof(float) > scratch_.bytes())
    rows_per_piece *= 2;
  const std::int64_t pieces = count();
  auto* partial = scratch<float>(static_cast<std::size_t>(pieces * columns));
  if (pieces > 0) {
    const dim3 grid(blocks_for(columns, warp), blocks_for(pieces, 1));
    with_type(dy.dtype(), [&]<class T> {
      piece_kernel<<<grid, dim3(warp, lanes), 0, on>>>(partial, static_cast<const T*>(dy.data()), rows, columns,
                                                       rows_per_piece);
    });
    SO_CUDA_LAUNCHED(op);
  }
  finish_column_sums(on, dbias, partial, pieces, columns, mode);
}

}  // namespace so
