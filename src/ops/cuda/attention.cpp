#include "ops/cuda/attention.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <optional>

#include "base/error.h"
#include "device/cuda/cuda_check.h"
#include "ops/cpu/attention.h"
#include "ops/cuda/attention_cudnn.h"
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/cuda_ops.h"

namespace so {
namespace {

// Sizes for ragged graphs: 64 to 512 in steps of 64, then four to an octave. Tiles beyond a document's end cost next to
// nothing, graphs 50 ms each.
std::int64_t rounded_length(std::int64_t length) {
  std::int64_t step = 64;
  while (step * 8 < length) step *= 2;
  return (length + step - 1) / step * step;
}
// Two to an octave: 1, 2, 3, 4, 6, 8, 12, ...
std::int64_t rounded_batch(std::int64_t documents) {
  std::int64_t step = 1;
  while (step * 4 < documents) step *= 2;
  return (documents + step - 1) / step * step;
}

std::int64_t largest_divisor(std::int64_t n, std::int64_t at_most) {
  for (std::int64_t d = std::min(n, at_most); d > 1; --d)
    if (n % d == 0) return d;
  return 1;
}

std::byte* aligned(std::byte* p) {
  constexpr std::uintptr_t to = 256;
  return p + (to - reinterpret_cast<std::uintptr_t>(p) % to) % to;
}

}  // namespace

struct CudaAttention::Call {
  const Heads *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr;
  const Heads *dout = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr;  // backward
  const Tensor* lse = nullptr;
  const AttentionSpans* spans = nullptr;
  cudaStream_t stream = nullptr;
  std::byte *scratch = nullptr, *scratch_end = nullptr;
  bool dense = false;  // which the layout of lse depends on

  Call(cudaStream_t s, const Heads& o, const Tensor& l, const Heads& qs, const Heads& ks, const Heads& vs,
       const AttentionSpans& sp, const Tensor& memory)
      : q(&qs), k(&ks), v(&vs), out(&o), lse(&l), spans(&sp), stream(s) {
    if (memory) {
      scratch = static_cast<std::byte*>(memory.data());
      scratch_end = scratch + memory.bytes();
      scratch = std::min(aligned(scratch), scratch_end);
    }
    dense = self_attention() && sp.max_q * sp.documents == q_rows() && sp.max_q % 64 == 0;
  }

  std::int64_t q_rows() const { return q->rows.dim(0); }
  std::int64_t k_rows() const { return k->rows.dim(0); }
  bool nothing() const { return spans->documents == 0 || q_rows() == 0 || k_rows() == 0; }
  bool self_attention() const { return q_rows() == k_rows() && spans->max_q == spans->max_k && spans->max_q > 0; }
  std::size_t scratch_bytes() const { return static_cast<std::size_t>(scratch_end - scratch); }

  // bf16 with every row of every head on a 16-byte boundary.
  bool in_pieces() const {
    if (q->rows.dtype() != DType::bf16 || q->head_dim % 8 != 0) return false;
    for (const Heads* h : {q, k, v, out, dout, dq, dk, dv})
      if (h && (h->offset % 8 != 0 || h->rows.dim(1) % 8 != 0 ||
                reinterpret_cast<std::uintptr_t>(h->rows.data()) % 16 != 0))
        return false;
    return true;
  }

  template <class T>
  T* take(std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
    SO_CHECK(bytes <= scratch_bytes(), "attention needs {} bytes of scratch, {} are left", bytes, scratch_bytes());
    T* const taken = reinterpret_cast<T*>(scratch);
    scratch = std::min(aligned(scratch + bytes), scratch_end);
    return taken;
  }

  static HeadsView view(const Heads* h) {
    if (!h) return {};
    return {static_cast<std::byte*>(h->rows.data()) + static_cast<std::size_t>(h->offset) * size_of(h->rows.dtype()),
            h->rows.dim(1)};
  }
  AttentionArguments arguments() const {
    AttentionArguments a;
    a.q = view(q), a.k = view(k), a.v = view(v), a.out = view(out);
    a.dout = view(dout), a.dq = view(dq), a.dk = view(dk), a.dv = view(dv);
    a.lse = lse->as<float>();
    a.lse_layout = dense ? LseLayout{spans->max_q, 1} : LseLayout{1, q->heads};
    a.cu_q = spans->cu_q.as<std::int32_t>(), a.cu_k = spans->cu_k.as<std::int32_t>();
    a.q_rows = q_rows(), a.k_rows = k_rows();
    a.documents = static_cast<int>(spans->documents);
    a.heads = static_cast<int>(q->heads), a.kv_heads = static_cast<int>(k->heads);
    a.head_dim = static_cast<int>(q->head_dim);
    a.scale = spans->scale;
    return a;
  }

  // The whole call as one graph.
  SdpaShape shape(bool backward, bool deterministic) const {
    SdpaShape s;
    s.backward = backward, s.ragged = !dense, s.deterministic = deterministic;
    s.batch = dense ? spans->documents : rounded_batch(spans->documents);
    s.length = dense ? spans->max_q : rounded_length(spans->max_q);
    s.heads = s.stats_heads = q->heads, s.kv_heads = k->heads, s.head_dim = q->head_dim;
    s.scale_bits = std::bit_cast<std::uint32_t>(spans->scale);
    const auto width = [](const Heads* h) { return h ? h->rows.dim(1) : 0; };
    s.q_width = width(q), s.k_width = width(k), s.v_width = width(v), s.out_width = width(out);
    if (!backward) return s;
    s.dout_width = width(dout), s.dq_width = width(dq), s.dk_width = width(dk), s.dv_width = width(dv);
    return s;
  }

  // The largest part of the call whose workspace fits, of whole documents (dense) and whole key heads; parts are equal,
  // so one graph does them all.
  std::optional<SdpaShape> part(SdpaShape whole, std::size_t bytes) const {
    const auto fits = [&](const SdpaShape& s) { return CudnnSdpa::workspace(s) <= bytes; };
    if (!whole.ragged) {
      SdpaShape one = whole;
      one.batch = 1;
      if (fits(one)) {
        std::int64_t batch = whole.batch;
        for (;; batch = largest_divisor(whole.batch, batch - 1)) {
          one.batch = batch;
          if (fits(one)) return one;
        }
      }
      whole.batch = 1;
    }
    const std::int64_t group = whole.heads / whole.kv_heads, kv_heads = whole.kv_heads;
    for (std::int64_t n = kv_heads;; n = largest_divisor(kv_heads, n - 1)) {
      whole.kv_heads = n;
      whole.heads = n * group;
      if (fits(whole)) return whole;
      if (n == 1) return std::nullopt;
    }
  }

  // Lays out offsets and lengths in the scratch and has them filled in.
  SdpaMemory memory(const SdpaShape& s) {
    SdpaMemory m;
    const Heads* const heads[sdpa_tensors] = {q, k, v, out, dout, dq, dk, dv, nullptr};
    RaggedOffsets offsets;
    for (int i = 0; i < sdpa_tensors; ++i) {
      const bool stats = i == static_cast<int>(SdpaTensor::stats);
      if (!heads[i] && !stats) continue;
      const auto at = static_cast<std::size_t>(i);
      m.data[at] = stats ? lse->data() : view(heads[i]).at;
      if (!s.ragged) continue;
      m.offsets[at] = take<std::int64_t>(s.batch + 1);
      offsets.offsets[offsets.tensors] = m.offsets[at];
      offsets.widths[offsets.tensors] = stats ? q->heads : heads[i]->rows.dim(1);
      offsets.keys[offsets.tensors] = heads[i] && (heads[i] == k || heads[i] == v || heads[i] == dk || heads[i] == dv);
      ++offsets.tensors;
    }
    if (!s.ragged) return m;
    offsets.lengths_q = m.lengths_q = take<std::int32_t>(s.batch);
    offsets.lengths_k = m.lengths_k = take<std::int32_t>(s.batch);
    ragged_offsets(stream, offsets, spans->cu_q.as<std::int32_t>(), spans->cu_k.as<std::int32_t>(),
                   static_cast<int>(spans->documents), static_cast<int>(s.batch));
    return m;
  }
};

CudaAttention::CudaAttention(const CudaProperties& properties, Gradient gradient)
    : properties_(properties), gradient_(gradient), cudnn_(std::make_unique<CudnnSdpa>()) {
  SO_CUDA(cudaDeviceGetAttribute(&shared_memory_, cudaDevAttrMaxSharedMemoryPerBlockOptin, properties.index));
}

CudaAttention::~CudaAttention() = default;

// What cuDNN documents: dense from sm_80 on with head dimensions up to 128, on Hopper up to 256; ragged on Hopper and
// data-centre Blackwell.
bool CudaAttention::cudnn_takes(const Call& call) const {
  if (!call.self_attention() || !call.in_pieces()) return false;
  const int generation = properties_.capability / 10;
  if (call.q->head_dim > (generation == 9 ? 256 : 128)) return false;
  return call.dense ? generation >= 8 : generation == 9 || generation == 10;
}

bool CudaAttention::tensor_cores_take(const Call& call) const {
  return call.in_pieces() && tensor_core_attention_takes(static_cast<int>(call.q->head_dim), shared_memory_);
}

void CudaAttention::forward(cudaStream_t stream, const Heads& out, const Tensor& lse, const Heads& q, const Heads& k,
                            const Heads& v, const AttentionSpans& spans, const Tensor& scratch) {
  Call call(stream, out, lse, q, k, v, spans, scratch);
  if (call.q_rows() == 0 || spans.documents == 0) return;
  if (cudnn_takes(call)) {
    const SdpaShape shape = call.shape(false, true);
    SdpaMemory memory = call.memory(shape);
    memory.workspace = call.scratch;
    memory.workspace_bytes = call.scratch_bytes();
    return cudnn_->run(stream, shape, memory);
  }
  if (tensor_cores_take(call)) return tensor_core_attention(stream, call.arguments());
  plain_attention(stream, q.rows.dtype(), call.arguments());
}

void CudaAttention::backward(cudaStream_t stream, const Heads& dq, const Heads& dk, const Heads& dv, const Heads& dout,
                             const Heads& out, const Tensor& lse, const Heads& q, const Heads& k, const Heads& v,
                             const AttentionSpans& spans, const Tensor& scratch) {
  Call call(stream, out, lse, q, k, v, spans, scratch);
  call.dout = &dout, call.dq = &dq, call.dk = &dk, call.dv = &dv;
  if (spans.documents == 0 || q.rows.dim(0) + k.rows.dim(0) == 0) return;
  if (cudnn_takes(call) && cudnn_backward(call)) return;
  AttentionArguments a = call.arguments();
  a.delta = call.take<float>(a.q_rows * a.heads);
  if (tensor_cores_take(call)) return tensor_core_attention_grad(stream, a);
  plain_attention_grad(stream, q.rows.dtype(), a);
}

bool CudaAttention::cudnn_backward(Call call) {
  const SdpaShape whole = call.shape(true, gradient_ == Gradient::deterministic);
  const std::int64_t tables = whole.ragged ? sdpa_tensors * (8 * (whole.batch + 1) + 256) + 2 * (4 * whole.batch + 256) : 0;
  const auto room = static_cast<std::int64_t>(call.scratch_bytes()) - tables;
  if (room <= 0) return false;
  const std::optional<SdpaShape> part = call.part(whole, static_cast<std::size_t>(room));
  if (!part) return false;
  SdpaMemory memory = call.memory(whole);
  memory.workspace = call.scratch;
  memory.workspace_bytes = call.scratch_bytes();
  const SdpaMemory base = memory;
  const std::int64_t rows = part->batch * part->length, dim = whole.head_dim;
  for (std::int64_t document = 0; document < whole.batch; document += part->batch)
    for (std::int64_t kv_head = 0; kv_head < whole.kv_heads; kv_head += part->kv_heads) {
      const std::int64_t head = kv_head * (whole.heads / whole.kv_heads), row = document / part->batch * rows;
      const auto move = [&](SdpaTensor t, std::int64_t elements, std::size_t size) {
        const auto i = static_cast<std::size_t>(t);
        memory.data[i] = static_cast<std::byte*>(base.data[i]) + static_cast<std::size_t>(elements) * size;
      };
      move(SdpaTensor::q, row * whole.q_width + head * dim, 2);
      move(SdpaTensor::k, row * whole.k_width + kv_head * dim, 2);
      move(SdpaTensor::v, row * whole.v_width + kv_head * dim, 2);
      move(SdpaTensor::out, row * whole.out_width + head * dim, 2);
      move(SdpaTensor::dout, row * whole.dout_width + head * dim, 2);
      move(SdpaTensor::dq, row * whole.dq_width + head * dim, 2);
      move(SdpaTensor::dk, row * whole.dk_width + kv_head * dim, 2);
      move(SdpaTensor::dv, row * whole.dv_width + kv_head * dim, 2);
      move(SdpaTensor::stats, row * whole.heads + head * (whole.ragged ? 1 : whole.length), sizeof(float));
      cudnn_->run(call.stream, *part, memory);
    }
  return true;
}

void CudaOps::attention(Stream& stream, Heads out, Tensor lse, Heads q, Heads k, Heads v, const AttentionSpans& spans,
                        Tensor scratch) {
  const cudaStream_t s = enter(stream);
  check_attention(out, lse, q, k, v, spans);
  SO_CHECK(q.head_dim <= max_kernel_head_dim, "heads of {}, at most {}", q.head_dim, max_kernel_head_dim);
  attention_->forward(s, out, lse, q, k, v, spans, scratch);
}

void CudaOps::attention_grad(Stream& stream, Heads dq, Heads dk, Heads dv, Heads dout, Heads out, Tensor lse, Heads q,
                             Heads k, Heads v, const AttentionSpans& spans, Tensor scratch) {
  const cudaStream_t s = enter(stream);
  check_attention_grad(dq, dk, dv, dout, out, lse, q, k, v, spans);
  SO_CHECK(q.head_dim <= max_kernel_head_dim, "heads of {}, at most {}", q.head_dim, max_kernel_head_dim);
  attention_->backward(s, dq, dk, dv, dout, out, lse, q, k, v, spans, scratch);
}

}  // namespace so
