#include "ops/scratch.h"

namespace so {
namespace {

// Matrix products (NVIDIA recommends 32 MiB for Hopper), and partial sums of reductions, which take turns.
constexpr std::size_t cuda_scratch = std::size_t{64} << 20;

}  // namespace

OpsScratch::OpsScratch(Device& device, DeviceKind kind) : kind_(kind) {
  if (kind == DeviceKind::cuda) held_ = device.allocate(MemoryKind::device, cuda_scratch, "ops scratch");
}

DType OpsScratch::logits_dtype(DType compute) const {
  // The CPU keeps fp32 logits. A GPU's matrix units want the gradient of the logits in T, which overwrites them.
  return kind_ == DeviceKind::cpu ? DType::f32 : compute;
}

std::size_t OpsScratch::attention(const AttentionSize&) const { return 0; }

std::size_t OpsScratch::attention_grad(const AttentionSize&) const { return 0; }

}  // namespace so
