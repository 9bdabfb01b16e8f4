// Attention of the CUDA backend: which way a call goes, and its scratch.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "device/cuda/cuda_device.h"
#include "ops/ops.h"

namespace so {

class CudnnSdpa;  // attention_cudnn.h

// Three ways, chosen from sizes alone, so that the same arguments always take the same one:
//   cuDNN          bf16 self-attention (as many query as key rows, the longest the same: then documents' queries are
//                  their keys' rows), where the GPU generation and the head dimension allow, rows in pieces of 16 bytes.
//     dense        all documents equally long, a multiple of 64
//     ragged       otherwise. The number of documents and the longest are rounded up, so that few graphs are built.
//   tensor cores   other bf16 (a KV cache), and gradients whose cuDNN workspace does not fit into the scratch
//   plain          fp32, and bf16 whose rows cannot be read 16 bytes at a time
//
// Backward is deterministic. cuDNN's deterministic gradient keeps dS, whose size is quadratic in the length; so a call
// is cut into parts, by documents and then by key heads, that fit into the scratch it is given (ops/scratch.h).
class CudaAttention {
 public:
  enum class Gradient { deterministic, any_order };  // any_order adds dq up in the order blocks finish; to measure with

  explicit CudaAttention(const CudaProperties& properties, Gradient gradient = Gradient::deterministic);
  ~CudaAttention();

  // Arguments are those of Ops, checked.
  void forward(cudaStream_t stream, const Heads& out, const Tensor& lse, const Heads& q, const Heads& k, const Heads& v,
               const AttentionSpans& spans, const Tensor& scratch);
  void backward(cudaStream_t stream, const Heads& dq, const Heads& dk, const Heads& dv, const Heads& dout,
                const Heads& out, const Tensor& lse, const Heads& q, const Heads& k, const Heads& v,
                const AttentionSpans& spans, const Tensor& scratch);

 private:
  struct Call;
  bool cudnn_takes(const Call& call) const;
  bool tensor_cores_take(const Call& call) const;
  bool cudnn_backward(Call call);  // false: not enough scratch

  const CudaProperties properties_;
  const Gradient gradient_;
  int shared_memory_ = 0;  // bytes that a block may have
  std::unique_ptr<CudnnSdpa> cudnn_;
};

}  // namespace so
