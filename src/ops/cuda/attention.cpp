#include "ops/cuda/attention.h"

#include "base/error.h"
#include "device/cuda/cuda_check.h"
#include "ops/cpu/attention.h"
#include "ops/cuda/attention_call.h"
#include "ops/cuda/attention_cudnn.h"
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/column_sums.h"
#include "ops/cuda/cuda_ops.h"

namespace so {
namespace {

// Up to this window, and with heads of this size, our forward pass on Hopper is faster than cuDNN's: at 128 0.13 ms for
// groups of eight heads and 0.21 by tiles against 0.26, but 0.50 against 0.46 at 512 (64 heads of 64, 4 documents of
// 4096); 0.48 against 0.31 at 512 with 32 heads of 128.
constexpr std::int64_t widest_forward = 192, forward_head_dim = 64;

}  // namespace

CudaAttention::CudaAttention(const CudaProperties& properties)
    : properties_(properties), cudnn_(std::make_unique<CudnnSdpa>()) {
  SO_CUDA(cudaDeviceGetAttribute(&shared_memory_, cudaDevAttrMaxSharedMemoryPerBlockOptin, properties.index));
}

CudaAttention::~CudaAttention() = default;

// cuDNN documents that it takes dense calls from sm_80 on with head dimensions up to 128, on Hopper up to 256; ragged
// ones on Hopper and data-centre Blackwell.
bool CudaAttention::cudnn_takes(const AttentionCall& call) const {
  if (!call.self_attention() || !call.in_pieces()) return false;
  const int generation = properties_.capability / 10;
  const std::int64_t widest = call.dout ? widest_cudnn_gradient : widest_cudnn_head;
  if (call.q->head_dim > (generation == 9 ? widest : 128)) return false;
  return call.dense ? generation >= 8 : generation == 9 || generation == 10;
}

bool CudaAttention::tensor_cores_take(const AttentionCall& call) const {
  return call.in_pieces() && tensor_core_attention_takes(static_cast<int>(call.q->head_dim), shared_memory_);
}

bool CudaAttention::hopper_takes(const AttentionCall& call) const {
  return properties_.capability == 90 && call.in_pieces() && hopper_attention_takes(static_cast<int>(call.q->head_dim));
}

bool CudaAttention::hopper_takes_wide(const AttentionCall& call) const {
  return properties_.capability == 90 && call.in_pieces() &&
         hopper_attention_takes_wide(static_cast<int>(call.q->head_dim));
}

void CudaAttention::forward(cudaStream_t stream, const Ops::Attention& a) {
  AttentionCall call(stream, a, a.scratch);
  if (call.q_rows() == 0 || a.spans.documents == 0) return;
  if (hopper_takes(call) && a.q.head_dim == forward_head_dim && narrow(call) && call.window() <= widest_forward) {
    const AttentionArguments args = call.arguments();
    return call.self_attention() && hopper_attention_takes_narrow_forward(args) ? hopper_attention_narrow(stream, args)
                                                                                : hopper_attention(stream, args);
  }
  if (cudnn_takes(call) && cudnn_forward(call)) return;
  if (hopper_takes_wide(call)) return hopper_attention_wide(stream, call.arguments());
  if (tensor_cores_take(call)) return tensor_core_attention(stream, call.arguments());
  plain_attention(stream, a.q.rows.dtype(), call.arguments());
}

bool CudaAttention::cudnn_forward(AttentionCall call) {
  SdpaShape shape = call.shape(false, true);
  const Tensor& sinks = call.spans->sinks;
  // cuDNN's own for dense batches, where they cost nothing; ragged ones would take twice the time (1.35 to 2.64 ms, 64
  // heads of 64, 4 documents of 4096), and a pass of our own a tenth more.
  shape.sinks = sinks && !shape.ragged;
  if (shape.sinks && !cudnn_->takes(shape)) shape.sinks = false;
  if (shape.window > 0 && !cudnn_->takes(shape)) return false;
  SdpaMemory memory = call.memory(shape);
  if (shape.sinks) {
    const Tensor wide(call.take<float>(call.q->heads), DType::f32, {1, call.q->heads});
    add_bias_rows(call.stream, wide, sinks, Accumulate::overwrite);
    memory.sinks = wide.as<const float>();
  }
  memory.workspace = call.scratch;
  memory.workspace_bytes = call.scratch_bytes();
  cudnn_->run(call.stream, shape, memory);
  if (sinks && !shape.sinks) apply_sinks(call.stream, call.arguments());
  return true;
}

void CudaAttention::backward(cudaStream_t stream, const Ops::AttentionGrad& g, void* partial_sums) {
  const Ops::Attention& forward = g.forward;
  AttentionCall call(stream, forward, g.scratch);
  call.dout = &g.dout, call.dq = &g.dq, call.dk = &g.dk, call.dv = &g.dv;
  const auto sinks = [&](const AttentionArguments& a) {
    if (g.dsinks) sink_gradient(stream, forward.q.rows.dtype(), a, g.dsinks, g.dsinks_mode, partial_sums);
  };
  AttentionArguments a = call.arguments();
  if (forward.spans.documents == 0 || forward.q.rows.dim(0) + forward.k.rows.dim(0) == 0) return sinks(a);
  if (cudnn_takes(call) && !narrow(call) && cudnn_backward(call)) return sinks(a);
  a.delta = call.take<float>(a.q_rows * a.heads);
  attention_delta(stream, forward.q.rows.dtype(), a);
  sinks(a);
  if (hopper_takes(call) && call.self_attention() && hopper_attention_takes_narrow(a))
    return hopper_attention_grad_narrow(stream, a, properties_.multiprocessors);
  if (hopper_takes(call)) return hopper_attention_grad(stream, a);
  if (hopper_takes_wide(call)) return hopper_attention_wide_grad(stream, a);
  if (tensor_cores_take(call)) return tensor_core_attention_grad(stream, a);
  plain_attention_grad(stream, forward.q.rows.dtype(), a);
}

// cuDNN's deterministic gradient (9.19) goes over all that comes before a query, whatever the window: 4.5 ms (64 heads
// of 64, 4 documents of 4096). Ours go over what it sees. On Hopper 0.41 ms with a window of 128, 1.3 at 512, 2.2 at
// 1024, 3.5 at 2048; by the other tensor cores' kernels 1.13, 2.7 and 4.7.
bool CudaAttention::narrow(const AttentionCall& call) const {
  return call.window() > 0 && (hopper_takes(call) ? 2 : 6) * call.window() <= call.spans->max_q;
}

void CudaOps::attention(Stream& stream, const Attention& a) {
  const cudaStream_t s = enter(stream);
  check_attention(a);
  SO_CHECK(a.q.head_dim <= max_kernel_head_dim, "heads of {}, at most {}", a.q.head_dim, max_kernel_head_dim);
  attention_->forward(s, a);
}

void CudaOps::attention_grad(Stream& stream, const AttentionGrad& g) {
  const cudaStream_t s = enter(stream);
  check_attention_grad(g);
  SO_CHECK(g.forward.q.head_dim <= max_kernel_head_dim, "heads of {}, at most {}", g.forward.q.head_dim,
           max_kernel_head_dim);
  attention_->backward(s, g, g.dsinks ? scratch_bytes(sink_gradient_scratch) : nullptr);
}

}  // namespace so
