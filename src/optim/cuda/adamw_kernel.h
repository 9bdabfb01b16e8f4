// What the kernels of AdamW share: the step of the contract in optim/adamw.h, whose rounding is written out, runs as a
// launch has them, and accesses of 16 bytes. Included by .cu files only.
#pragma once

#include <cstdint>
#include <span>

#include "device/cuda/kernel.h"
#include "optim/device_adamw.h"

namespace so::adamw {

using kernel::from_float;
using kernel::Pack;
using kernel::to_float;

constexpr int threads = 256;
constexpr int per_thread = 8;  // elements: 16 bytes of bf16, two times 16 of fp32
constexpr std::int64_t tile = threads * per_thread;

// A run as the kernel sees it. Tiles lie on the grid of whole packs, so the first may begin before the run; where
// moments lie in blocks, they begin with the run.
struct TiledRun {
  std::int64_t begin, end;
  std::int64_t first_tile;   // of the launch
  std::int64_t first_block;  // of 8-bit moments
  float decay;
};

// Passed by value: no copy to the device, nothing to keep alive.
constexpr int runs_at_once = 80;
struct Runs {
  int count = 0;
  TiledRun at[runs_at_once];
};
static_assert(sizeof(Runs) < 3500, "kernel parameters may take 4 KB in all");

// launch(table, tiles) for the runs, as many at a time as a launch takes. `tiles_of(run)`: of those with elements.
template <class TilesOf, class Launch>
void for_each_launch(std::span<const AdamWRun> runs, std::int64_t elements, float decay, const TilesOf& tiles_of,
                     const Launch& launch) {
  for (std::size_t done = 0; done < runs.size();) {
    Runs table;
    std::int64_t tiles = 0;
    for (; done < runs.size() && table.count < runs_at_once; ++done) {
      const AdamWRun& run = runs[done];
      if (run.begin == run.end) continue;
      SO_CHECK(run.begin >= 0 && run.begin < run.end && run.end <= elements, "AdamW: elements [{}, {}) of {}",
               run.begin, run.end, elements);
      table.at[table.count++] = {run.begin, run.end, tiles, run.first_block, run.decay ? decay : 0.0f};
      tiles += tiles_of(run);
    }
    if (tiles > 0) launch(table, tiles);
  }
}

// The last run whose tiles begin at or before this block's; the same for all its threads.
__device__ inline TiledRun run_of_block(const Runs& runs) {
  int low = 0, high = runs.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (runs.at[middle].first_tile <= static_cast<std::int64_t>(blockIdx.x))
      low = middle;
    else
      high = middle - 1;
  }
  return runs.at[low];
}

__device__ inline void update_element(const AdamWStep& s, float decay, float gradient, float& p, float& m, float& v) {
  const float g = __fmul_rn(s.grad_scale, gradient);
  m = __fmaf_rn(s.one_minus_beta1, __fsub_rn(g, m), m);
  v = __fmaf_rn(__fmul_rn(s.one_minus_beta2, g), g, __fmul_rn(s.beta2, v));
  const float denominator = __fmaf_rn(__fsqrt_rn(v), s.inv_sqrt_bias2, s.epsilon);
  const float q = __fdiv_rn(m, denominator);
  p = __fsub_rn(p, __fmaf_rn(s.step_size, q, __fmul_rn(decay, p)));
}

// `per_thread` elements in accesses of 16 bytes.
template <class T>
__device__ inline void load_all(float (&to)[per_thread], const T* from) {
  constexpr int n = kernel::pack_size<T>;
#pragma unroll
  for (int i = 0; i < per_thread; i += n) {
    const auto pack = *reinterpret_cast<const Pack<T, n>*>(from + i);
#pragma unroll
    for (int j = 0; j < n; ++j) to[i + j] = to_float(pack.at[j]);
  }
}
template <class T>
__device__ inline void store_all(T* to, const float (&from)[per_thread]) {
  constexpr int n = kernel::pack_size<T>;
#pragma unroll
  for (int i = 0; i < per_thread; i += n) {
    Pack<T, n> pack;
#pragma unroll
    for (int j = 0; j < n; ++j) pack.at[j] = from_float<T>(from[i + j]);
    *reinterpret_cast<Pack<T, n>*>(to + i) = pack;
  }
}

}  // namespace so::adamw
