// Heads inside wider rows, as kernels take them. Included by .cu files only.
#pragma once

#include "device/cuda/kernel.h"
#include "ops/ops.h"

namespace so::kernel {

template <class T>
struct Span {
  T* data;             // of the first row's first head; null if there are none
  std::int64_t width;  // from a row to the next
  std::int64_t step;   // from a head to the next
  __device__ T* head(std::int64_t row, int h) const { return data + row * width + h * step; }
};
template <class T>
Span<T> span_of(const Heads& heads) {
  if (!heads.rows) return {nullptr, 0, 0};
  return {static_cast<T*>(heads.rows.data()) + heads.offset, heads.rows.dim(1), heads.step()};
}

// Whether every head of these rows, if there are any, begins at a multiple of N elements' bytes.
template <class T, int N>
bool heads_aligned(const Heads& heads) {
  const Span<T> span = span_of<T>(heads);
  return span.step % N == 0 && rows_aligned<T, N>(span.width, span.data);
}

}  // namespace so::kernel
