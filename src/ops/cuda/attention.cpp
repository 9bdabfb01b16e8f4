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
#include "ops/cuda/column_sums.h"
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

constexpr std::int64_t alignment = 256;
std::byte* aligned(std::byte* p) {
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(p) % alignment);
  return past > 0 ? p + (alignment - past) : p;
}

// Up to this window, and with heads of this size, our forward pass on Hopper is faster than cuDNN's: at 128 0.13 ms for
// groups of eight heads and 0.21 by tiles against 0.26, but 0.50 against 0.46 at 512 (64 heads of 64, 4 documents of
// 4096); 0.48 against 0.31 at 512 with 32 heads of 128.
constexpr std::int64_t widest_forward = 192, forward_head_dim = 64;

}  // namespace

struct CudaAttention::Call {
  const Heads *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr;
  const Heads *dout = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr;  // backward
  const Tensor* lse = nullptr;
  const AttentionSpans* spans = nullptr;
  cudaStream_t stream = nullptr;
  std::byte *scratch = nullptr, *scratch_end = nullptr;
  bool dense = false;  // which the layout of lse depends on

  // Keeps pointers into `a`.
  Call(cudaStream_t s, const Ops::Attention& a, const Tensor& memory)
      : q(&a.q), k(&a.k), v(&a.v), out(&a.out), lse(&a.lse), spans(&a.spans), stream(s) {
    if (memory) {
      scratch = static_cast<std::byte*>(memory.data());
      scratch_end = scratch + memory.bytes();
      scratch = std::min(aligned(scratch), scratch_end);
    }
    dense = self_attention() && spans->max_q * spans->documents == q_rows() && spans->max_q % 64 == 0;
  }

  std::int64_t q_rows() const { return q->rows.dim(0); }
  // 0 if every key up to its own is in a query's.
  std::int64_t window() const { return spans->window < spans->max_k ? spans->window : 0; }
  std::int64_t k_rows() const { return k->rows.dim(0); }
  bool nothing() const { return spans->documents == 0 || q_rows() == 0 || k_rows() == 0; }
  bool self_attention() const { return q_rows() == k_rows() && spans->max_q == spans->max_k && spans->max_q > 0; }
  std::size_t scratch_bytes() const { return static_cast<std::size_t>(scratch_end - scratch); }

  // bf16 with every row of every head on a 16-byte boundary.
  bool in_pieces() const {
    if (q->rows.dtype() != DType::bf16 || q->head_dim % 8 != 0) return false;
    for (const Heads* h : {q, k, v, out, dout, dq, dk, dv})
      if (h &&
          (h->offset % 8 != 0 || h->rows.dim(1) % 8 != 0 || reinterpret_cast<std::uintptr_t>(h->rows.data()) % 16 != 0))
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
    if (spans->sinks) a.sinks = spans->sinks.data();
    a.window = static_cast<int>(window() > 0 ? window() : k_rows() + 1);
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
    s.window = window();
    const auto width = [](const Heads* h) { return h ? h->rows.dim(1) : 0; };
    s.q_width = width(q), s.k_width = width(k), s.v_width = width(v), s.out_width = width(out);
    if (!backward) return s;
    s.dout_width = width(dout), s.dq_width = width(dq), s.dk_width = width(dk), s.dv_width = width(dv);
    return s;
  }

  // Lays out offsets and lengths in the scratch and has them filled in.
  SdpaMemory memory(const SdpaShape& s) {
    SdpaMemory m;
    const Heads* const heads[sdpa_tensors] = {q, k, v, out, dout, dq, dk, dv, nullptr};
    RaggedOffsets offsets;
    for (int i = 0; i < sdpa_tensors; ++i) {
      const auto t = static_cast<SdpaTensor>(i);
      if (!heads[i] && t != SdpaTensor::stats) continue;
      const auto at = static_cast<std::size_t>(i);
      m.data[at] = heads[i] ? view(heads[i]).at : lse->data();
      if (!s.ragged) continue;
      m.offsets[at] = take<std::int64_t>(s.batch + 1);
      offsets.offsets[offsets.tensors] = m.offsets[at];
      offsets.widths[offsets.tensors] = s.width(t);
      offsets.keys[offsets.tensors] =
          t == SdpaTensor::k || t == SdpaTensor::v || t == SdpaTensor::dk || t == SdpaTensor::dv;
      ++offsets.tensors;
    }
    if (!s.ragged) return m;
    offsets.lengths_q = m.lengths_q = take<std::int32_t>(s.batch);
    offsets.lengths_k = m.lengths_k = take<std::int32_t>(s.batch);
    ragged_offsets(stream, offsets, spans->cu_q.as<std::int32_t>(), spans->cu_k.as<std::int32_t>(),
                   static_cast<int>(spans->documents), static_cast<int>(s.batch));
    return m;
  }
  // Returns the most that memory() takes.
  static std::int64_t memory_bytes(const SdpaShape& s) {
    return s.ragged ? sdpa_tensors * (8 * (s.batch + 1) + alignment) + 2 * (4 * s.batch + alignment) : 0;
  }
};

CudaAttention::CudaAttention(const CudaProperties& properties, Gradient gradient)
    : properties_(properties), gradient_(gradient), cudnn_(std::make_unique<CudnnSdpa>()) {
  SO_CUDA(cudaDeviceGetAttribute(&shared_memory_, cudaDevAttrMaxSharedMemoryPerBlockOptin, properties.index));
}

CudaAttention::~CudaAttention() = default;

// cuDNN documents that it takes dense calls from sm_80 on with head dimensions up to 128, on Hopper up to 256; ragged
// ones on Hopper and data-centre Blackwell.
bool CudaAttention::cudnn_takes(const Call& call) const {
  if (!call.self_attention() || !call.in_pieces()) return false;
  const int generation = properties_.capability / 10;
  if (call.q->head_dim > (generation == 9 ? 256 : 128)) return false;
  return call.dense ? generation >= 8 : generation == 9 || generation == 10;
}

bool CudaAttention::tensor_cores_take(const Call& call) const {
  return call.in_pieces() && tensor_core_attention_takes(static_cast<int>(call.q->head_dim), shared_memory_);
}

bool CudaAttention::hopper_takes(const Call& call) const {
  return properties_.capability == 90 && call.in_pieces() && hopper_attention_takes(static_cast<int>(call.q->head_dim));
}

void CudaAttention::forward(cudaStream_t stream, const Ops::Attention& a) {
  Call call(stream, a, a.scratch);
  if (call.q_rows() == 0 || a.spans.documents == 0) return;
  if (hopper_takes(call) && a.q.head_dim == forward_head_dim && narrow(call) && call.window() <= widest_forward) {
    const AttentionArguments args = call.arguments();
    return call.self_attention() && hopper_attention_takes_narrow_forward(args) ? hopper_attention_narrow(stream, args)
                                                                                : hopper_attention(stream, args);
  }
  if (cudnn_takes(call) && cudnn_forward(call)) return;
  if (tensor_cores_take(call)) return tensor_core_attention(stream, call.arguments());
  plain_attention(stream, a.q.rows.dtype(), call.arguments());
}

bool CudaAttention::cudnn_forward(Call call) {
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
  Call call(stream, forward, g.scratch);
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
  if (tensor_cores_take(call)) return tensor_core_attention_grad(stream, a);
  plain_attention_grad(stream, forward.q.rows.dtype(), a);
}

namespace {

// How a gradient is cut: `shape` is the graph of one part. Either whole documents (dense) and whole key heads; or,
// where one key head's queries are too many, some query heads of one key head at a time, whose dk and dv are added up
// after.
struct Cut {
  SdpaShape shape;
  int head_parts = 1;  // of the query heads of a key head
};

std::int64_t partial_sums_rows(const SdpaShape& s, std::int64_t k_rows) { return s.ragged ? k_rows : s.length; }

// The largest parts that fit into `bytes`, as equal as can be, so that few graphs do them all.
std::optional<Cut> cut_gradient(const SdpaShape& whole, std::int64_t k_rows, std::int64_t bytes) {
  const auto fits = [&](const SdpaShape& s, std::int64_t other = 0) {
    return static_cast<std::int64_t>(CudnnSdpa::workspace(s)) + other <= bytes;
  };
  SdpaShape s = whole;
  for (std::int64_t batch = whole.ragged ? 1 : whole.batch; batch > 1;
       batch = largest_divisor(whole.batch, batch - 1)) {
    s.batch = batch;
    if (fits(s)) return Cut{s};
  }
  if (!whole.ragged) s.batch = 1;
  const std::int64_t group = whole.heads / whole.kv_heads;
  for (std::int64_t n = whole.kv_heads; n > 0; n = n > 1 ? largest_divisor(whole.kv_heads, n - 1) : 0) {
    s.kv_heads = n;
    s.heads = n * group;
    if (fits(s)) return Cut{s};
  }
  s.dk_width = s.dv_width = s.head_dim;
  for (std::int64_t parts = 2; parts <= group; ++parts) {
    s.heads = (group + parts - 1) / parts;
    if ((group + s.heads - 1) / s.heads != parts) continue;
    if (fits(s, 4 * parts * partial_sums_rows(s, k_rows) * s.head_dim + 2 * alignment))
      return Cut{s, static_cast<int>(parts)};
  }
  return std::nullopt;
}

}  // namespace

// cuDNN's deterministic gradient (9.19) goes over all that comes before a query, whatever the window: 4.5 ms (64 heads
// of 64, 4 documents of 4096). Ours go over what it sees. On Hopper 0.41 ms with a window of 128, 1.3 at 512, 2.2 at
// 1024, 3.5 at 2048; by the other tensor cores' kernels 1.13, 2.7 and 4.7.
bool CudaAttention::narrow(const Call& call) const {
  return call.window() > 0 && (hopper_takes(call) ? 2 : 6) * call.window() <= call.spans->max_q;
}

bool CudaAttention::cudnn_backward(Call call) {
  const SdpaShape whole = call.shape(true, gradient_ == Gradient::deterministic);
  const std::int64_t room = static_cast<std::int64_t>(call.scratch_bytes()) - Call::memory_bytes(whole);
  const std::optional<Cut> cut = cut_gradient(whole, call.k_rows(), room);
  if (!cut) return false;
  const SdpaShape& part = cut->shape;
  if (part.window > 0 && !cudnn_->takes(part)) return false;
  const std::int64_t dim = whole.head_dim, group = whole.heads / whole.kv_heads;
  SdpaMemory memory = call.memory(part);
  const bool partial = cut->head_parts > 1;
  const std::int64_t partial_rows = partial_sums_rows(part, call.k_rows());
  using bf16_bits = std::uint16_t;
  bf16_bits* const partial_dk = partial ? call.take<bf16_bits>(cut->head_parts * partial_rows * dim) : nullptr;
  bf16_bits* const partial_dv = partial ? call.take<bf16_bits>(cut->head_parts * partial_rows * dim) : nullptr;
  memory.workspace = call.scratch;
  memory.workspace_bytes = call.scratch_bytes();
  const SdpaMemory base = memory;

  const auto at = [&](SdpaTensor t, std::int64_t row, std::int64_t head) -> void* {
    const bool stats = t == SdpaTensor::stats;
    // Statistics are [batch, heads, length] or, ragged, [rows, heads].
    const std::int64_t elements = row * whole.width(t) + head * (!stats ? dim : whole.ragged ? 1 : whole.length);
    return static_cast<std::byte*>(base.data[static_cast<std::size_t>(t)]) + elements * (stats ? 4 : 2);
  };
  const auto set = [&](SdpaTensor t, void* p) { memory.data[static_cast<std::size_t>(t)] = p; };
  for (std::int64_t document = 0; document < whole.batch; document += part.batch)
    for (std::int64_t kv_head = 0; kv_head < whole.kv_heads; kv_head += part.kv_heads) {
      const std::int64_t row = document * whole.length;  // ragged has one part of documents
      for (const SdpaTensor t : {SdpaTensor::k, SdpaTensor::v, SdpaTensor::dk, SdpaTensor::dv})
        set(t, at(t, row, kv_head));
      for (int p = 0; p < cut->head_parts; ++p) {
        SdpaShape now = part;
        if (partial) {
          now.heads = std::min(part.heads, group - p * part.heads);
          set(SdpaTensor::dk, partial_dk + p * partial_rows * dim);
          set(SdpaTensor::dv, partial_dv + p * partial_rows * dim);
        }
        for (const SdpaTensor t : {SdpaTensor::q, SdpaTensor::out, SdpaTensor::dout, SdpaTensor::dq, SdpaTensor::stats})
          set(t, at(t, row, kv_head * group + p * part.heads));
        cudnn_->run(call.stream, now, memory);
      }
      if (!partial) continue;
      const auto sums = [&](SdpaTensor t, const void* parts) {
        return PartialSums{
            {at(t, row, kv_head), whole.width(t)}, parts, cut->head_parts, static_cast<int>(dim), partial_rows};
      };
      add_partial_sums(call.stream, sums(SdpaTensor::dk, partial_dk), sums(SdpaTensor::dv, partial_dv),
                       part.ragged ? call.spans->cu_k.as<std::int32_t>() : nullptr,
                       static_cast<int>(call.spans->documents));
    }
  return true;
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
