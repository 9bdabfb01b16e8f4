// Rows gathered from a table, and their gradients scattered back.
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "device/cuda/kernel.h"
#include "device/cuda/rows.h"
#include "ops/checks.h"
#include "ops/cuda/cuda_ops.h"

namespace so {
namespace {

using namespace kernel;

constexpr int threads = 256;

// An id outside the table is a broken invariant of the caller; the kernel stops the program as a failed check would.
__device__ inline void check_id(std::int32_t id, std::int64_t vocabulary) {
  if (id < 0 || id >= vocabulary) __trap();
}

__global__ void __launch_bounds__(threads) number_kernel(std::int32_t* numbers, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * threads + threadIdx.x;
  if (i < count) numbers[i] = static_cast<std::int32_t>(i);
}

// ids sorted, `order` the rows they came from, rows of one id in order. The blocks of the first row of an id add all
// its rows to the table, from left to right in fp32, rounded once; the others have nothing to do. Grid: x over rows, y
// over pieces of a row, so that a frequent id does not make one block do all.
template <class G, class T, int N>
__global__ void __launch_bounds__(threads)
    scatter_kernel(G* dtable, const T* dout, const std::int32_t* ids, const std::int32_t* order, std::int64_t rows,
                   std::int64_t width, std::int64_t vocabulary, bool add) {
  const std::int64_t first = blockIdx.x;
  const std::int32_t id = ids[first];
  check_id(id, vocabulary);
  if (first > 0 && ids[first - 1] == id) return;
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.y) * threads + threadIdx.x) * N;
  if (i >= width) return;
  std::int64_t last = first + 1;  // beyond the last row of this id
  for (std::int64_t end = rows; last < end;) {
    const std::int64_t middle = (last + end) / 2;
    if (ids[middle] == id)
      last = middle + 1;
    else
      end = middle;
  }
  float sum[N] = {};
  if (add) load<N>(sum, dtable + id * width + i);
#pragma unroll 4
  for (std::int64_t k = first; k < last; ++k) {
    float x[N];
    load<N>(x, dout + static_cast<std::int64_t>(order[k]) * width + i);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[j] += x[j];
  }
  store<N>(dtable + id * width + i, sum);
}

template <class G, class T>
void launch_scatter(Tensor dtable, Tensor dout, const std::int32_t* ids, const std::int32_t* order, bool add,
                    cudaStream_t on) {
  auto* to = static_cast<G*>(dtable.data());
  const auto* from = static_cast<const T*>(dout.data());
  const std::int64_t rows = dout.dim(0), width = dout.dim(1), vocabulary = dtable.dim(0);
  constexpr int N = pack_size<T>;
  const auto grid = [&](int pack) {
    return dim3(blocks_for(rows, 1), blocks_for(width, static_cast<std::int64_t>(threads) * pack));
  };
  if (rows_aligned<G, N>(width, to) && rows_aligned<T, N>(width, from))
    scatter_kernel<G, T, N><<<grid(N), threads, 0, on>>>(to, from, ids, order, rows, width, vocabulary, add);
  else
    scatter_kernel<G, T, 1><<<grid(1), threads, 0, on>>>(to, from, ids, order, rows, width, vocabulary, add);
}

}  // namespace

void CudaOps::embedding(Stream& stream, Tensor out, Tensor table, Tensor ids) {
  const char* op = "embedding";
  SO_CHECK(out.rank() == 2 && table.rank() == 2, "{}: out is {}, table {}", op, shape_string(out.shape()),
           shape_string(table.shape()));
  expect_compute_dtype(op, "out", out.dtype());
  const std::int64_t rows = out.dim(0), width = out.dim(1);
  expect_tensor(op, "out", out, out.dtype(), {rows, width});
  expect_tensor(op, "table", table, out.dtype(), {table.dim(0), width});
  expect_tensor(op, "ids", ids, DType::i32, {rows});
  const cudaStream_t on = enter(stream);
  if (out.size() == 0) return;
  take_rows(on, out, table, ids);
}

void CudaOps::embedding_grad(Stream& stream, Tensor dtable, Tensor dout, Tensor ids, Accumulate mode) {
  const char* op = "embedding_grad";
  SO_CHECK(dout.rank() == 2 && dtable.rank() == 2, "{}: dout is {}, dtable {}", op, shape_string(dout.shape()),
           shape_string(dtable.shape()));
  expect_compute_dtype(op, "dout", dout.dtype());
  const std::int64_t rows = dout.dim(0), width = dout.dim(1);
  expect_tensor(op, "dout", dout, dout.dtype(), {rows, width});
  expect_gradient(op, "dtable", dtable, dout.dtype(), {dtable.dim(0), width});
  expect_tensor(op, "ids", ids, DType::i32, {rows});
  const cudaStream_t on = enter(stream);
  if (mode == Accumulate::overwrite) SO_CUDA(cudaMemsetAsync(dtable.data(), 0, dtable.bytes(), on));
  if (dout.size() == 0) return;

  // Rows by id, stably: a radix sort keeps rows of one id in order.
  const auto n = static_cast<std::size_t>(rows);
  const int count = static_cast<int>(rows);
  SO_CHECK(rows < (std::int64_t{1} << 31), "{}: {} rows", op, rows);
  const int id_bits = std::bit_width(static_cast<std::uint64_t>(dtable.dim(0)));  // all that ids differ in
  std::size_t sort_bytes = 0;
  SO_CUDA((cub::DeviceRadixSort::SortPairs(
      nullptr, sort_bytes, static_cast<const std::int32_t*>(nullptr), static_cast<std::int32_t*>(nullptr),
      static_cast<const std::int32_t*>(nullptr), static_cast<std::int32_t*>(nullptr), count, 0, id_bits, on)));
  auto* numbers = static_cast<std::int32_t*>(scratch_bytes(3 * n * sizeof(std::int32_t) + sort_bytes + 256));
  std::int32_t *sorted = numbers + n, *order = sorted + n;
  auto* sort_scratch = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(order + n) + 255) / 256 * 256);
  number_kernel<<<blocks_for(rows, threads), threads, 0, on>>>(numbers, rows);
  SO_CUDA((cub::DeviceRadixSort::SortPairs(sort_scratch, sort_bytes, ids.as<std::int32_t>(), sorted, numbers, order,
                                           count, 0, id_bits, on)));
  if (dout.dtype() == DType::f32)
    launch_scatter<float, float>(dtable, dout, sorted, order, mode == Accumulate::add, on);
  else if (dtable.dtype() == DType::f32)
    launch_scatter<float, __nv_bfloat16>(dtable, dout, sorted, order, mode == Accumulate::add, on);
  else
    launch_scatter<__nv_bfloat16, __nv_bfloat16>(dtable, dout, sorted, order, mode == Accumulate::add, on);
  SO_CUDA_LAUNCHED(op);
}

}  // namespace so
