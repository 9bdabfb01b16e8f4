// A warp updates a block of moments: 8 neighbouring elements a lane. Codes, scales and dither are those of
// optim/moment_blocks.h, to the bit.
#include <type_traits>

#include "device/cuda/cuda_device.h"
#include "optim/cuda/adamw_blocks.h"
#include "optim/cuda/adamw_kernel.h"

namespace so::adamw {
namespace {

static_assert(moment_block == kernel::warp * per_thread);
constexpr int warps = threads / kernel::warp;

using Codes8 = Pack<std::uint8_t, per_thread>;

template <class Codes>
__device__ float code_value(unsigned code) {
  const float least = __uint_as_float(Codes::smallest_normal);
  const unsigned fp32 = (code << Codes::shift) + Codes::base;
  if (code >> (23 - Codes::shift)) return __uint_as_float(fp32);
  return __fsub_rn(__uint_as_float(fp32 + (1u << 23)), least);
}

template <class Codes>
__device__ unsigned code_of(float scaled, unsigned hash) {
  const float least = __uint_as_float(Codes::smallest_normal);
  const unsigned exact = scaled < least ? __float_as_uint(__fadd_rn(scaled, least)) - Codes::smallest_normal
                                        : __float_as_uint(scaled) - Codes::base;
  return min((exact + (hash >> (32 - Codes::shift))) >> Codes::shift, Codes::largest_code);
}

template <class Codes>
__device__ float magnitude_of(unsigned code, float scale) {
  return isinf(scale) ? scale : __fmul_rn(code_value<Codes>(code), scale);
}
__device__ float first_moment(unsigned code, float scale) {
  const float magnitude = magnitude_of<FirstMomentCodes>(code & ~moment_sign, scale);
  return code & moment_sign ? -magnitude : magnitude;
}
__device__ float second_moment(unsigned code, float scale) { return magnitude_of<SecondMomentCodes>(code, scale); }

struct Scale {
  float value, inverse;
};

// MomentScale of a block, in each lane of its warp, which has these of its moments.
__device__ Scale scale_of(const float (&moments)[per_thread]) {
  unsigned largest = 0;
#pragma unroll
  for (int k = 0; k < per_thread; ++k) largest = max(largest, __float_as_uint(moments[k]) & 0x7fffffffu);
#pragma unroll
  for (int lanes = kernel::warp / 2; lanes > 0; lanes /= 2)
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
  const unsigned field = largest >> 23, used = min(field, MomentScale::most_field);
  const bool finite = field < 255, kept = finite && field >= MomentScale::least_field;
  return {__uint_as_float(!finite ? 255u << 23
                          : kept  ? used << 23
                                  : 0u),
          __uint_as_float(kept ? (254 - used) << 23 : 0u)};
}

// A lane's elements, of which there are fewer at the end of a run.
template <bool whole>
__device__ Codes8 load_codes(const std::uint8_t* from, int count) {
  Codes8 codes = {};
  if constexpr (whole) {
    codes = *reinterpret_cast<const Codes8*>(from);
  } else {
#pragma unroll
    for (int k = 0; k < per_thread; ++k)
      if (k < count) codes.at[k] = from[k];
  }
  return codes;
}
template <bool whole>
__device__ void store_codes(std::uint8_t* to, const Codes8& codes, int count) {
  if constexpr (whole) {
    *reinterpret_cast<Codes8*>(to) = codes;
  } else {
#pragma unroll
    for (int k = 0; k < per_thread; ++k)
      if (k < count) to[k] = codes.at[k];
  }
}
template <bool whole, class T>
__device__ void load_some(float (&to)[per_thread], const T* from, int count) {
  if constexpr (whole) {
    load_all(to, from);
  } else {
#pragma unroll
    for (int k = 0; k < per_thread; ++k) to[k] = k < count ? to_float(from[k]) : 0.0f;
  }
}
template <bool whole, class T>
__device__ void store_some(T* to, const float (&from)[per_thread], int count) {
  if constexpr (whole) {
    store_all(to, from);
  } else {
#pragma unroll
    for (int k = 0; k < per_thread; ++k)
      if (k < count) to[k] = from_float<T>(from[k]);
  }
}

// An array of codes, and one of scales, from the first element and the first block of an update on.
struct Blocks {
  std::uint8_t* codes;
  float* scales;
};

// Elements [i, i + count) of the arrays by this lane; the warp has block `block`.
template <bool whole, class G, class W>
__device__ void update_lane(const AdamWStep& step, float decay, std::int64_t i, int count, std::int64_t block,
                            const G* gradient, float* master, const Blocks& first, const Blocks& second, W* weights) {
  float g[per_thread], p[per_thread], m[per_thread], v[per_thread];
  load_some<whole>(g, gradient + i, count);
  load_some<whole>(p, master + i, count);
  Codes8 m_codes = load_codes<whole>(first.codes + i, count), v_codes = load_codes<whole>(second.codes + i, count);
  const float old_m = first.scales[block], old_v = second.scales[block];
#pragma unroll
  for (int k = 0; k < per_thread; ++k) {
    m[k] = first_moment(m_codes.at[k], old_m);
    v[k] = second_moment(v_codes.at[k], old_v);
    // What lies beyond the run has no part in the scale, whatever it is that a zero code decodes to.
    if (!whole && k >= count) m[k] = v[k] = 0;
    update_element(step, decay, g[k], p[k], m[k], v[k]);
  }
  store_some<whole>(master + i, p, count);
  if (weights != nullptr) store_some<whole>(weights + i, p, count);

  const Scale m_scale = scale_of(m), v_scale = scale_of(v);
#pragma unroll
  for (int k = 0; k < per_thread; ++k) {
    const unsigned bits = __float_as_uint(m[k]),
                   hash = (bits ^ __float_as_uint(v[k]) << 11 ^ step.dither) * moment_hash_factor;
    const unsigned m_code = code_of<FirstMomentCodes>(__fmul_rn(fabsf(m[k]), m_scale.inverse), hash),
                   v_code = code_of<SecondMomentCodes>(__fmul_rn(v[k], v_scale.inverse), hash);
    m_codes.at[k] = static_cast<std::uint8_t>(m_code | (bits >> 24 & moment_sign));
    v_codes.at[k] = static_cast<std::uint8_t>(v_code == 0 && v[k] > 0 && v_scale.value > 0 ? 1u : v_code);
  }
  store_codes<whole>(first.codes + i, m_codes, count);
  store_codes<whole>(second.codes + i, v_codes, count);
  if (threadIdx.x % kernel::warp == 0) {
    first.scales[block] = m_scale.value;
    second.scales[block] = v_scale.value;
  }
}

template <class G, class W>
__global__ void __launch_bounds__(threads)
    adamw_blocks_kernel(const AdamWStep step, const __grid_constant__ Runs runs, const G* __restrict__ gradient,
                        float* __restrict__ master, const Blocks first, const Blocks second, W* __restrict__ weights) {
  const TiledRun run = run_of_block(runs);
  const std::int64_t in_run = (static_cast<std::int64_t>(blockIdx.x) - run.first_tile) * warps +
                              static_cast<std::int64_t>(threadIdx.x) / kernel::warp,
                     begin = run.begin + in_run * moment_block,
                     i = begin + static_cast<std::int64_t>(threadIdx.x) % kernel::warp * per_thread;
  if (begin >= run.end) return;  // the whole warp
  const std::int64_t left = run.end - i;
  const int count = left <= 0 ? 0 : left < per_thread ? static_cast<int>(left) : per_thread;
  const std::int64_t block = run.first_block + in_run;
  // The same for a warp, whose lanes find the largest together.
  if (run.begin % per_thread == 0 && begin + moment_block <= run.end)
    update_lane<true>(step, run.decay, i, count, block, gradient, master, first, second, weights);
  else
    update_lane<false>(step, run.decay, i, count, block, gradient, master, first, second, weights);
}

}  // namespace

void update_blocks(Stream& stream, const AdamWStep& step, std::span<const AdamWRun> runs, std::int64_t elements,
                   const Tensor& gradient, const AdamWState& state, const Tensor& weights) {
  const auto blocks_of = [](const Moments& moments) {
    SO_CHECK(moments.scales() != nullptr && moments.in_block() == 0, "AdamW: moments that begin within a block");
    return Blocks{moments.as<std::uint8_t>(), moments.scales()};
  };
  const Blocks first = blocks_of(state.m), second = blocks_of(state.v);
  const auto tiles_of = [](const AdamWRun& run) { return (moment_blocks(run.end - run.begin) + warps - 1) / warps; };
  for_each_launch(runs, elements, step.decay, tiles_of, [&](const Runs& table, std::int64_t tiles) {
    kernel::with_type(gradient.dtype(), [&]<class G>() {
      kernel::with_type(weights.dtype(), [&]<class W>() {
        adamw_blocks_kernel<G, W><<<kernel::blocks_for(tiles, 1), threads, 0, cuda_stream(stream)>>>(
            step, table, static_cast<const G*>(gradient.data()), state.master, first, second,
            static_cast<W*>(weights.data()));
        SO_CUDA_LAUNCHED("AdamW");
      });
    });
  });
}

}  // namespace so::adamw
