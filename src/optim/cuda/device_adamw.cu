// AdamW on the GPU. A pass over memory: 20 to 32 bytes an element, and some sixty instructions, far below what memory
// lets through. The rounding of every operation is written out, so that the bits are those of optim/adamw.h.
#include <algorithm>
#include <type_traits>

#include "device/cuda/cuda_device.h"
#include "device/cuda/kernel.h"
#include "optim/cuda/cuda.h"

namespace so {
namespace {

using kernel::from_float;
using kernel::Pack;
using kernel::to_float;

constexpr int threads = 256;
constexpr int per_thread = 8;  // elements: 16 bytes of bf16, two times 16 of fp32
constexpr std::int64_t tile = threads * per_thread;

// A run as the kernel sees it. Tiles lie on the grid of whole packs, so the first may begin before the run.
struct TiledRun {
  std::int64_t begin, end;
  std::int64_t first_tile;  // of the launch
  float decay;
};

// Passed by value: no copy to the device, nothing to keep alive.
constexpr int runs_at_once = 96;
struct Runs {
  int count = 0;
  TiledRun at[runs_at_once];
};
static_assert(sizeof(Runs) < 3500, "kernel parameters may take 4 KB in all");

__device__ void update_element(const AdamWStep& s, float decay, float gradient, float& p, float& m, float& v) {
  const float g = __fmul_rn(s.grad_scale, gradient);
  m = __fmaf_rn(s.one_minus_beta1, __fsub_rn(g, m), m);
  v = __fmaf_rn(__fmul_rn(s.one_minus_beta2, g), g, __fmul_rn(s.beta2, v));
  const float denominator = __fmaf_rn(__fsqrt_rn(v), s.inv_sqrt_bias2, s.epsilon);
  const float q = __fdiv_rn(m, denominator);
  p = __fsub_rn(p, __fmaf_rn(s.step_size, q, __fmul_rn(decay, p)));
}

// `per_thread` elements in accesses of 16 bytes.
template <class T>
__device__ void load_all(float (&to)[per_thread], const T* from) {
  constexpr int n = kernel::pack_size<T>;
#pragma unroll
  for (int i = 0; i < per_thread; i += n) {
    const auto pack = *reinterpret_cast<const Pack<T, n>*>(from + i);
#pragma unroll
    for (int j = 0; j < n; ++j) to[i + j] = to_float(pack.at[j]);
  }
}
template <class T>
__device__ void store_all(T* to, const float (&from)[per_thread]) {
  constexpr int n = kernel::pack_size<T>;
#pragma unroll
  for (int i = 0; i < per_thread; i += n) {
    Pack<T, n> pack;
#pragma unroll
    for (int j = 0; j < n; ++j) pack.at[j] = from_float<T>(from[i + j]);
    *reinterpret_cast<Pack<T, n>*>(to + i) = pack;
  }
}

template <class G, class M, class W>
__global__ void __launch_bounds__(threads)
    adamw_kernel(const AdamWStep step, const __grid_constant__ Runs runs, const G* __restrict__ gradient,
                 float* __restrict__ master, M* __restrict__ first, M* __restrict__ second, W* __restrict__ weights) {
  // The last run whose tiles begin at or before this block's; the same for all its threads.
  int low = 0, high = runs.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (runs.at[middle].first_tile <= static_cast<std::int64_t>(blockIdx.x))
      low = middle;
    else
      high = middle - 1;
  }
  const TiledRun run = runs.at[low];
  const std::int64_t i = run.begin / per_thread * per_thread +
                         (static_cast<std::int64_t>(blockIdx.x) - run.first_tile) * tile +
                         static_cast<std::int64_t>(threadIdx.x) * per_thread;
  if (i >= run.end) return;

  if (i >= run.begin && i + per_thread <= run.end) {
    float g[per_thread], p[per_thread], m[per_thread], v[per_thread];
    load_all(g, gradient + i);
    load_all(p, master + i);
    load_all(m, first + i);
    load_all(v, second + i);
#pragma unroll
    for (int k = 0; k < per_thread; ++k) update_element(step, run.decay, g[k], p[k], m[k], v[k]);
    store_all(master + i, p);
    store_all(first + i, m);
    store_all(second + i, v);
    if (weights != nullptr) store_all(weights + i, p);
    return;
  }
  // The run's first or last few elements: their pack is shared with a neighbour.
  const std::int64_t begin = i > run.begin ? i : run.begin;
  const std::int64_t end = i + per_thread < run.end ? i + per_thread : run.end;
  for (std::int64_t k = begin; k < end; ++k) {
    float p = master[k], m = to_float(first[k]), v = to_float(second[k]);
    update_element(step, run.decay, to_float(gradient[k]), p, m, v);
    master[k] = p;
    first[k] = from_float<M>(m);
    second[k] = from_float<M>(v);
    if (weights != nullptr) weights[k] = from_float<W>(p);
  }
}

template <class M>
M* address_of(const Moments& moments) {
  if constexpr (std::is_same_v<M, float>)
    return moments.as<float>();
  else
    return reinterpret_cast<M*>(moments.as<bf16>());
}

class CudaAdamW final : public DeviceAdamW {
 public:
  void update(Stream& stream, const AdamWStep& step, std::span<const AdamWRun> runs, Tensor gradient, AdamWState state,
              Tensor weights) override {
    for (const void* array : {static_cast<const void*>(state.master), static_cast<const void*>(state.m.data()),
                              static_cast<const void*>(state.v.data()), static_cast<const void*>(gradient.data()),
                              static_cast<const void*>(weights.data())})
      SO_CHECK(reinterpret_cast<std::uintptr_t>(array) % 16 == 0, "AdamW: an array at {}", array);
    const cudaStream_t to = cuda_stream(stream);
    for (std::size_t done = 0; done < runs.size();) {
      Runs table;
      std::int64_t tiles = 0;
      for (; done < runs.size() && table.count < runs_at_once; ++done) {
        const AdamWRun& run = runs[done];
        if (run.begin == run.end) continue;
        SO_CHECK(run.begin >= 0 && run.begin < run.end && run.end <= gradient.size() && run.end <= weights.size(),
                 "AdamW: elements [{}, {}) of {}", run.begin, run.end, gradient.size());
        table.at[table.count++] = {run.begin, run.end, tiles, run.decay ? step.decay : 0.0f};
        tiles += (run.end - run.begin / per_thread * per_thread + tile - 1) / tile;
      }
      if (tiles == 0) continue;
      kernel::with_type(gradient.dtype(), [&]<class G>() {
        kernel::with_type(state.m.dtype(), [&]<class M>() {
          kernel::with_type(weights.dtype(), [&]<class W>() {
            adamw_kernel<G, M, W><<<kernel::blocks_for(tiles, 1), threads, 0, to>>>(
                step, table, static_cast<const G*>(gradient.data()), state.master, address_of<M>(state.m),
                address_of<M>(state.v), static_cast<W*>(weights.data()));
            SO_CUDA_LAUNCHED("AdamW");
          });
        });
      });
    }
  }
};

}  // namespace

std::unique_ptr<DeviceAdamW> make_cuda_adamw(Device&) { return std::make_unique<CudaAdamW>(); }

}  // namespace so
