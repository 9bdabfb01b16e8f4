// AdamW on the GPU. A pass over memory: 20 to 32 bytes an element, and some sixty instructions, far below what memory
// lets through. The rounding of every operation is written out, so that the bits are those of optim/adamw.h.
#include <algorithm>
#include <type_traits>

#include "device/cuda/cuda_device.h"
#include "optim/cuda/adamw_blocks.h"
#include "optim/cuda/adamw_kernel.h"
#include "optim/cuda/cuda.h"

namespace so {
namespace {

using adamw::from_float;
using adamw::load_all;
using adamw::per_thread;
using adamw::run_of_block;
using adamw::Runs;
using adamw::store_all;
using adamw::threads;
using adamw::tile;
using adamw::TiledRun;
using adamw::to_float;
using adamw::update_element;

template <class G, class M, class W>
__global__ void __launch_bounds__(threads)
    adamw_kernel(const AdamWStep step, const __grid_constant__ Runs runs, const G* __restrict__ gradient,
                 float* __restrict__ master, M* __restrict__ first, M* __restrict__ second, W* __restrict__ weights) {
  const TiledRun run = run_of_block(runs);
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
    const std::int64_t elements = std::min(gradient.size(), weights.size());
    if (state.m.dtype() == DType::u8)
      return adamw::update_blocks(stream, step, runs, elements, gradient, state, weights);
    const auto tiles_of = [](const AdamWRun& run) {
      return (run.end - run.begin / per_thread * per_thread + tile - 1) / tile;
    };
    adamw::for_each_launch(runs, elements, step.decay, tiles_of, [&](const Runs& table, std::int64_t tiles) {
      kernel::with_type(gradient.dtype(), [&]<class G>() {
        kernel::with_type(state.m.dtype(), [&]<class M>() {
          kernel::with_type(weights.dtype(), [&]<class W>() {
            adamw_kernel<G, M, W><<<kernel::blocks_for(tiles, 1), threads, 0, cuda_stream(stream)>>>(
                step, table, static_cast<const G*>(gradient.data()), state.master, address_of<M>(state.m),
                address_of<M>(state.v), static_cast<W*>(weights.data()));
            SO_CUDA_LAUNCHED("AdamW");
          });
        });
      });
    });
  }
};

}  // namespace

std::unique_ptr<DeviceAdamW> make_cuda_adamw(Device&) { return std::make_unique<CudaAdamW>(); }

}  // namespace so
