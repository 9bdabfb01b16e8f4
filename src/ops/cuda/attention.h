// Attention of the CUDA backend: which way a call goes, and its scratch.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "device/cuda/cuda_device.h"
#include "ops/ops.h"

namespace so {

class CudnnSdpa;       // attention_cudnn.h
struct AttentionCall;  // attention_call.h

// Four ways, chosen from sizes alone, so that the same arguments always take the same one:
//   cuDNN          bf16 self-attention (as many query as key rows, the longest the same: then documents' queries are
//                  their keys' rows), where the GPU generation and the head dimension allow, rows in pieces of 16
//                  bytes; but for gradients of heads of 256.
//     dense        all documents equally long, a multiple of 64
//     ragged       otherwise. The number of documents and the longest are rounded up, so that few graphs are built.
//   Hopper         on its GPUs: gradients of heads of 256; windows, backward up to half the longest document with
//                  heads of 64 or 128, forward up to 192 keys with heads of 64; and gradients of other bf16 with such
//                  heads, or whose cuDNN workspace does not fit into the scratch
//   Hopper, wide   bf16 with heads of 512 on its GPUs, whatever else; cuDNN has none so wide
//   tensor cores   such windows and gradients elsewhere, and other bf16 (a KV cache)
//   plain          fp32, and bf16 whose rows cannot be read 16 bytes at a time
//
// A window that cuDNN refuses goes to the tensor cores' kernels; one that reaches every key is none. Sinks are cuDNN's
// where its version takes them, forward; else they are brought in after it. Backward, the probabilities exp(score -
// lse) have them already, in lse, so the gradient is that without sinks, and theirs is a reduction of its own (cuDNN's
// would not say in which order it adds).
// With a small window memory is the limit. Take 64 query and 8 key heads of 64, 16,384 tokens and a window of 128:
// forward is 34 GFLOP, but q, k, v and out are 0.30 GB, which takes 63 us at an H200's 4.8 TB/s, as long as the
// arithmetic at 540 TFLOP/s. Adding sinks afterwards reads and writes out once more, 56 us, so cuDNN adds them if it
// can. The gradient of sinks reads out and dout, 56 us, after cuDNN's own backward; after our kernels it reads their
// delta instead.
//
// Backward is deterministic unless AttentionSpans::any_order allows other. cuDNN's deterministic gradient keeps dS,
// whose size is quadratic in the length; so a call is cut into parts that fit into the scratch it is given: by
// documents, then by key heads, then by the query heads of one key head. More scratch than
// OpsMemory::attention_grad() says is used if it is there. Where not one query head of the longest document fits,
// documents are taken one by one and the long ones in tiles of queries by keys (attention_long.h), which needs to know
// on the host where they begin; else our own kernels do it all.
//
// Measured on one H200 with cuDNN 9.19, 40 heads of 128 on 8 key heads, in ms (causal TFLOP/s). Gradients: with dq
// added up in any order; deterministic with 40 GB of scratch; with what is planned; by the tensor cores' kernels (not
// Hopper's).
//                             forward      any order    40 GB        planned      kernels
//   4 x 4,096, dense          1.12 (614)   3.48 (493)   3.78 (455)   4.22 (408)   12.1
//   4 x 4,096, ragged         1.20 (573)   3.66 (470)   4.01 (428)   4.52 (381)   12.2
//   1 x 16,384, dense         4.17 (659)   12.9 (532)   14.9 (461)                45.1
//   15 of 38 to 4,096         0.72 (520)   2.35 (400)   2.64 (356)                 7.3
// So a step of 2.2 s with 40 layers and 4 x 4,096 tokens pays 1.3% for the same bits every time with 1.5 GiB for dS,
// and 0.5% with 5.7 GB; ragged costs 7% more than dense. One query on 4,096 keys takes 0.14 ms.
//
// 32 heads of 512 on 4 key heads, 1 x 8,192: forward 7.2 ms (306), gradient 28.1 (196); PyTorch's fallback in the same
// call 16.2 and 131, its cuDNN with 32 heads of 256 on 16 517 and 371 TFLOP/s.
//
// Gradients of heads of 256, ours beside cuDNN's with 40 GB of scratch and beside its in any order. 24 heads on 4 key
// heads, 4 x 4,096: 5.9 ms (348) beside 7.0 and 5.9; 32 on 16, windows of 1,024: 3.9 beside 9.3 and 4.3, and of one
// document of 32,768 8.6 beside 157 (by the tensor cores' kernels) and 9.5.
class CudaAttention {
 public:
  explicit CudaAttention(const CudaProperties& properties);
  ~CudaAttention();

  // Arguments are those of Ops, checked. partial_sums: sink_gradient_scratch bytes, if there are sinks.
  void forward(cudaStream_t stream, const Ops::Attention& a);
  void backward(cudaStream_t stream, const Ops::AttentionGrad& g, void* partial_sums);

 private:
  bool cudnn_takes(const AttentionCall& call) const;
  bool tensor_cores_take(const AttentionCall& call) const;
  bool hopper_takes(const AttentionCall& call) const;
  bool hopper_takes_wide(const AttentionCall& call) const;
  bool narrow(const AttentionCall& call) const;
  bool cudnn_forward(AttentionCall call);          // false: cuDNN does not take this window
  bool cudnn_backward(const AttentionCall& call);  // false: that, or not enough scratch

  const CudaProperties properties_;
  int shared_memory_ = 0;  // bytes that a block may have
  std::unique_ptr<CudnnSdpa> cudnn_;
};

}  // namespace so
