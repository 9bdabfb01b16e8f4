// Building blocks of the CUDA kernels: element types, 16-byte accesses, sums over lanes.
// Included by .cu files only.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "base/dtype.h"
#include "base/error.h"
#include "device/cuda/cuda_check.h"

namespace so::kernel {

inline constexpr int warp = 32;

// Memory element -> fp32 and back, one rounding to nearest even.
__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// exp(x): in full fp32 for fp32 data; for bf16 data by the special function unit, whose error of a few units in the
// last place of fp32 (more for large |x|: 2^-24 |x|) is far below a bf16 rounding.
template <class T>
__device__ inline float exponential(float x) {
  if constexpr (sizeof(T) == 4) return expf(x);
  return __expf(x);
}

// `N` elements that are read or written in one access of N * sizeof(T) bytes, which must divide their address.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T at[N];
};
// As many as 16 bytes hold.
template <class T>
inline constexpr int pack_size = 16 / sizeof(T);

// The type that holds N elements between memory and arithmetic: words, which the compiler keeps in registers.
template <class T, int N>
using Words = Pack<unsigned, N * sizeof(T) / 4 == 0 ? 1 : N * sizeof(T) / 4>;

template <int N, class T>
__device__ inline Words<T, N> fetch(const T* from) {
  if constexpr (N * sizeof(T) >= 4) return *reinterpret_cast<const Words<T, N>*>(from);
  return {{*reinterpret_cast<const unsigned short*>(from)}};
}
// T is the type of the words.
template <class T, int N>
__device__ inline void widen(float (&to)[N], const Words<T, N>& words) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if constexpr (sizeof(T) == 4)
      to[i] = __uint_as_float(words.at[i]);
    else
      to[i] = __uint_as_float(i % 2 == 0 ? words.at[i / 2] << 16 : words.at[i / 2] & 0xffff0000u);
  }
}
template <int N, class T>
__device__ inline void load(float (&to)[N], const T* from) {
  widen<T>(to, fetch<N>(from));
}
// One access to global memory for each 16 bytes, or for all of them if they are fewer. In PTX: the compiler takes plain
// stores of vector types apart, and does not always find its way back.
template <int COUNT>
__device__ inline void store_words(void* to, const unsigned (&words)[COUNT]) {
  const auto address = __cvta_generic_to_global(to);
  if constexpr (COUNT % 4 == 0) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 4)
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address + 4 * i), "r"(words[i]), "r"(words[i + 1]),
                   "r"(words[i + 2]), "r"(words[i + 3])
                   : "memory");
  } else if constexpr (COUNT == 2) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(words[0]), "r"(words[1]) : "memory");
  } else {
    static_assert(COUNT == 1);
    *static_cast<unsigned*>(to) = words[0];
  }
}

// The words of N elements of T, rounded from fp32.
template <class T, int N>
__device__ inline Words<T, N> narrow(const float (&from)[N]) {
  static_assert(N * sizeof(T) % 4 == 0);
  Words<T, N> words;
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < N; ++i) words.at[i] = __float_as_uint(from[i]);
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 2) {  // two at a time: one instruction
      const __nv_bfloat162 both = __floats2bfloat162_rn(from[i], from[i + 1]);
      words.at[i / 2] = *reinterpret_cast<const unsigned*>(&both);
    }
  }
  return words;
}

template <int N, class T>
__device__ inline void store(T* to, const float (&from)[N]) {
  if constexpr (N * sizeof(T) % 4 == 0) {
    store_words(to, narrow<T>(from).at);
  } else {
    static_assert(N == 1);
    *to = from_float<T>(from[0]);
  }
}

// Whether rows of `width` elements beginning at each of the pointers can be accessed N elements at a time.
template <class T, int N, class... Pointers>
bool rows_aligned(std::int64_t width, const Pointers*... pointers) {
  const auto fits = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % (N * sizeof(T)) == 0; };
  return width % N == 0 && (fits(pointers) && ...);
}

// The sum over a group of LANES neighbouring lanes, a power of two, in each of them; the order is fixed (a butterfly).
// Every lane of the warp takes part.
template <int LANES, class T>
__device__ inline T group_sum(T x) {
#pragma unroll
  for (int lane = LANES / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
  return x;
}
template <class T>
__device__ inline T warp_sum(T x) {
  return group_sum<warp>(x);
}

// Calls f.template operator()<T>() with the CUDA type of the dtype.
template <class F>
void with_type(DType dtype, F&& f) {
  if (dtype == DType::bf16)
    f.template operator()<__nv_bfloat16>();
  else
    f.template operator()<float>();
}

// Loads a kernel of the current device, else its first use does.
template <class Kernel>
void load_kernel(Kernel* kernel) {
  cudaFuncAttributes attributes;
  SO_CUDA(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
}

inline unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  const std::int64_t blocks = (items + per_block - 1) / per_block;
  SO_CHECK(blocks > 0 && blocks < (std::int64_t{1} << 31), "{} blocks", blocks);
  return static_cast<unsigned>(blocks);
}

}  // namespace so::kernel
