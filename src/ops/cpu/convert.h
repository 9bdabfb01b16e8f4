// Rows of f32 or bf16 to and from fp32 scratch, for the ops of this folder that compute on fp32 tiles.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace so {

// to[i] = from[i], widened when `type` is bf16. `from` counts in elements of its type.
void load_row(float* to, const void* from, DType type, std::int64_t count);

// to[i] = sum of from[i] and, where given, bias[i] (of `bias_type`) and, when `add`, to[i]: summed in that order in
// fp32 and rounded once to `type`.
void store_row(void* to, DType type, const float* from, std::int64_t count, const void* bias = nullptr,
               DType bias_type = DType::f32, bool add = false);

// The address `elements` further on.
inline const void* advance(const void* base, DType type, std::int64_t elements) {
  return static_cast<const std::byte*>(base) + elements * static_cast<std::int64_t>(size_of(type));
}
inline void* advance(void* base, DType type, std::int64_t elements) {
  return static_cast<std::byte*>(base) + elements * static_cast<std::int64_t>(size_of(type));
}

}  // namespace so
