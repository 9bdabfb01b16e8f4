// Computes the memory that a backend needs beside its arguments, by kind of device. It is plain arithmetic, so that a
// dry run on any machine plans what the real backend will use; the backend checks itself against it.
#pragma once

#include <cstddef>

#include "device/device.h"
#include "ops/ops.h"

namespace so {

// cuDNN's workspace for attention beyond the tensors in it: 256 bytes and 256 a document were seen.
constexpr std::int64_t cudnn_allowance(std::int64_t batch) { return 65536 + 320 * batch; }

class OpsScratch {
 public:
  // Allocates what the backend holds for as long as it lives ("ops scratch"; none on the CPU).
  OpsScratch(Device& device, DeviceKind kind);

  std::size_t attention(const AttentionSize& size) const;
  std::size_t attention_grad(const AttentionSize& size) const;
  std::size_t attention_grad_most(const AttentionSize& size) const;
  DType logits_dtype(DType activations) const;

  // The backend's own scratch.
  void* data() const { return held_.data(); }
  std::size_t bytes() const { return held_.bytes(); }

 private:
  // The scratch of an attention gradient without cuDNN's dS.
  std::int64_t attention_grad_base(const AttentionSize& size) const;
  std::int64_t attention_grad_any_order(const AttentionSize& size) const;

  DeviceKind kind_;
  Buffer held_;
};

}  // namespace so
