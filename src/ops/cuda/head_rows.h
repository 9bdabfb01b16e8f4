// Heads as the kernels of recurrences see them.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "ops/ops.h"

namespace so {

// Element (n, h, d) is at[n * width + h * step + d].
struct HeadRows {
  void* at = nullptr;
  std::int64_t width = 0, step = 0;
};

inline HeadRows head_rows(const Heads& heads) {
  if (!heads.rows) return {};
  return {static_cast<char*>(heads.rows.data()) + heads.offset * static_cast<std::int64_t>(size_of(heads.rows.dtype())),
          heads.rows.dim(1), heads.step()};
}

// Those from head `first` on.
inline HeadRows from_head(HeadRows heads, std::int64_t first, DType dtype) {
  if (heads.at)
    heads.at = static_cast<char*>(heads.at) + first * heads.step * static_cast<std::int64_t>(size_of(dtype));
  return heads;
}

// Whether every head's row, of bf16, can be read 16 bytes at a time.
inline bool in_pieces(const HeadRows& heads) {
  return reinterpret_cast<std::uintptr_t>(heads.at) % 16 == 0 && heads.width % 8 == 0 && heads.step % 8 == 0;
}

// The op's scratch, of which it needs so many bytes; null if none.
inline char* recurrence_scratch(const char* op, const Tensor& scratch, std::size_t needed) {
  SO_CHECK(scratch.bytes() >= needed, "{}: {} bytes of scratch, it needs {}", op, scratch.bytes(), needed);
  return needed > 0 ? static_cast<char*>(scratch.data()) : nullptr;
}

}  // namespace so
