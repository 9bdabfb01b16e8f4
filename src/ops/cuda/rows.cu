#include "device/cuda/kernel.h"
#include "ops/cuda/rows.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 256;

// A block a row of the shorter side. An index outside the longer one is a broken invariant of the caller; the kernel
// stops the program as a failed check would.
template <class T, int N, bool SCATTER>
__global__ void __launch_bounds__(threads)
    move_rows_kernel(T* to, const T* from, const std::int32_t* rows, std::int64_t width, std::int64_t count) {
  const std::int64_t here = blockIdx.x, there = rows[here];
  if (there < 0 || there >= count) __trap();
  to += (SCATTER ? there : here) * width;
  from += (SCATTER ? here : there) * width;
  for (std::int64_t i = threadIdx.x * N; i < width; i += threads * N)
    *reinterpret_cast<Pack<T, N>*>(to + i) = *reinterpret_cast<const Pack<T, N>*>(from + i);
}

template <bool SCATTER>
void move_rows(cudaStream_t stream, Tensor to, Tensor from, Tensor rows, std::int64_t count) {
  if (rows.size() == 0 || to.dim(1) == 0) return;
  with_type(to.dtype(), [&]<class T> {
    auto* target = static_cast<T*>(to.data());
    const auto* source = static_cast<const T*>(from.data());
    constexpr int N = pack_size<T>;
    const bool packs = rows_aligned<T, N>(to.dim(1), target, source);
    const auto kernel = packs ? move_rows_kernel<T, N, SCATTER> : move_rows_kernel<T, 1, SCATTER>;
    kernel<<<blocks_for(rows.size(), 1), threads, 0, stream>>>(target, source, rows.as<std::int32_t>(), to.dim(1),
                                                               count);
  });
  SO_CUDA_LAUNCHED(SCATTER ? "scatter rows" : "gather rows");
}

}  // namespace

void take_rows(cudaStream_t stream, Tensor to, Tensor from, Tensor rows) {
  move_rows<false>(stream, to, from, rows, from.dim(0));
}

void scatter_rows(cudaStream_t stream, Tensor to, Tensor from, Tensor rows) {
  move_rows<true>(stream, to, from, rows, to.dim(0));
}

}  // namespace so
