// One kernel serves both directions.
#include "device/cuda/kernel.h"
#include "device/cuda/rows.h"

namespace so {
namespace {

using namespace kernel;

constexpr int rows_threads = 256;
constexpr int rows_loads = 4;                          // of a thread
constexpr int rows_block = rows_threads * rows_loads;  // words of a row that a block moves

// Words are 16 bytes or an element. Grid: x over the rows, y over pieces of a row, so that a few wide rows keep more
// multiprocessors busy; all loads of a thread come before its first store. A number outside the table is a broken
// invariant of the caller; the kernel stops the program as a failed check would.
template <class Word, bool SCATTER>
__global__ void __launch_bounds__(rows_threads)
    rows_kernel(Word* to, const Word* from, const std::int32_t* rows, std::int64_t width, std::int64_t table_rows) {
  const std::int64_t here = blockIdx.x, there = rows[here];
  if (there < 0 || there >= table_rows) __trap();
  to += (SCATTER ? there : here) * width;
  from += (SCATTER ? here : there) * width;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.y) * rows_block + threadIdx.x;
  Word loaded[rows_loads];
#pragma unroll
  for (int i = 0; i < rows_loads; ++i)
    if (const std::int64_t at = begin + i * rows_threads; at < width) loaded[i] = from[at];
#pragma unroll
  for (int i = 0; i < rows_loads; ++i)
    if (const std::int64_t at = begin + i * rows_threads; at < width) to[at] = loaded[i];
}

template <class Word, bool SCATTER>
void launch_rows(Tensor out, Tensor in, Tensor rows, std::int64_t width, cudaStream_t on) {
  const dim3 grid(blocks_for(rows.size(), 1), blocks_for(width, rows_block));
  rows_kernel<Word, SCATTER>
      <<<grid, rows_threads, 0, on>>>(static_cast<Word*>(out.data()), static_cast<const Word*>(in.data()),
                                      rows.as<const std::int32_t>(), width, SCATTER ? out.dim(0) : in.dim(0));
}

template <bool SCATTER>
void move_rows(Tensor out, Tensor in, Tensor rows, cudaStream_t on) {
  if (rows.size() == 0 || in.dim(1) == 0) return;
  with_type(in.dtype(), [&]<class T> {
    constexpr int N = pack_size<T>;
    const std::int64_t width = in.dim(1);
    if (rows_aligned<T, N>(width, static_cast<const T*>(out.data()), static_cast<const T*>(in.data())))
      launch_rows<uint4, SCATTER>(out, in, rows, width / N, on);
    else
      launch_rows<T, SCATTER>(out, in, rows, width, on);
  });
  SO_CUDA_LAUNCHED(SCATTER ? "scatter_rows" : "gather_rows");
}

}  // namespace

void take_rows(cudaStream_t stream, Tensor out, Tensor in, Tensor rows) { move_rows<false>(out, in, rows, stream); }

void scatter_rows(cudaStream_t stream, Tensor out, Tensor in, Tensor rows) { move_rows<true>(out, in, rows, stream); }

}  // namespace so
