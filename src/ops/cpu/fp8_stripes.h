// Rounding to FP8 of a matrix that an op makes 128 rows at a time, as fp8_quantise() rounds the whole.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/tensor.h"
#include "base/thread_pool.h"
#include "ops/fp8_matrix.h"

namespace so {

// `stripe` has the rows from `first` on, a multiple of 128, of a matrix of `all`: 128, or what is left. Each target may
// be empty.
void fp8_quantise_stripe(const Fp8Matrix& rows, const Fp8Matrix& columns, const Tensor& stripe, std::int64_t first,
                         std::int64_t all);

// Calls body(first, count) for each stripe of `rows`, on the pool's threads.
template <class Body>
void for_each_fp8_stripe(ThreadPool& pool, std::int64_t rows, const Body& body) {
  pool.parallel_for((rows + fp8_block - 1) / fp8_block, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin * fp8_block; first < std::min(rows, end * fp8_block); first += fp8_block)
      body(first, std::min(fp8_block, rows - first));
  });
}

}  // namespace so
