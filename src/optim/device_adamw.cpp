#include "optim/device_adamw.h"

#include <vector>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "optim/cuda/cuda.h"

namespace so {
namespace {

class DryAdamW final : public DeviceAdamW {
 public:
  void update(Stream&, const AdamWStep&, std::span<const AdamWRun>, Tensor, AdamWState, Tensor) override {}
};

template <class T>
std::span<T> part(const Tensor& tensor, const AdamWRun& run) {
  return tensor.span<T>().subspan(static_cast<std::size_t>(run.begin), static_cast<std::size_t>(run.end - run.begin));
}

Moments moments_of(const Moments& all, const AdamWRun& run) {
  if (all.dtype() != DType::u8) return all + run.begin;
  return {all.as<std::uint8_t>() + run.begin, all.scales() + run.first_block};
}

class CpuAdamW final : public DeviceAdamW {
 public:
  void update(Stream& stream, const AdamWStep& step, std::span<const AdamWRun> runs, Tensor gradient, AdamWState state,
              Tensor weights) override {
    CpuStream& own = cpu(stream);
    own.enqueue("AdamW", WorkCategory::memory_bound,
                [step, runs = std::vector(runs.begin(), runs.end()), gradient, state, weights, &pool = own.pool()] {
                  for (const AdamWRun& run : runs) {
                    GradientSpan g = gradient.dtype() == DType::bf16
                                         ? GradientSpan(std::span<const bf16>(part<bf16>(gradient, run)))
                                         : GradientSpan(std::span<const float>(part<float>(gradient, run)));
                    WeightSpan w;
                    if (weights)
                      w = weights.dtype() == DType::bf16 ? WeightSpan(part<bf16>(weights, run))
                                                         : WeightSpan(part<float>(weights, run));
                    const AdamWState at{state.master + run.begin, moments_of(state.m, run), moments_of(state.v, run)};
                    adamw_update_parallel(pool, step, run.decay, g, at, at, w);
                  }
                });
  }
};

}  // namespace

std::unique_ptr<DeviceAdamW> make_device_adamw(Device& device) {
  if (!device.backed()) return std::make_unique<DryAdamW>();
  switch (device.kind()) {
    case DeviceKind::cpu:
      return std::make_unique<CpuAdamW>();
    case DeviceKind::cuda:
      return make_cuda_adamw(device);
  }
  SO_BUG("no AdamW for device {}", device.name());
}

}  // namespace so
