// A call of attention as the CUDA backend goes through it: its sizes, views for kernels and for cuDNN, and its scratch.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "ops/cuda/attention_cudnn.h"
#include "ops/cuda/attention_kernels.h"
#include "ops/cudnn_workspace.h"
#include "ops/ops.h"

namespace so {

// Two to an octave: 1, 2, 3, 4, 6, 8, 12, ...
inline std::int64_t rounded_batch(std::int64_t documents) {
  std::int64_t step = 1;
  while (step * 4 < documents) step *= 2;
  return (documents + step - 1) / step * step;
}

inline constexpr std::int64_t scratch_alignment = 256;
inline std::byte* aligned(std::byte* p) {
  const auto past = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(p) % scratch_alignment);
  return past > 0 ? p + (scratch_alignment - past) : p;
}

// One call of attention or its gradient, and what is left of the scratch it was given. A copy takes from the same
// scratch again.
struct AttentionCall {
  const Heads *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr;
  const Heads *dout = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr;  // backward
  const Tensor* lse = nullptr;
  const AttentionSpans* spans = nullptr;
  cudaStream_t stream = nullptr;
  std::byte *scratch = nullptr, *scratch_end = nullptr;
  bool dense = false;  // which the layout of lse depends on

  // Keeps pointers into `a`.
  AttentionCall(cudaStream_t s, const Ops::Attention& a, const Tensor& memory)
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
    s.length = s.key_length = dense ? spans->max_q : rounded_length(spans->max_q);
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
      offsets.keys[offsets.tensors] = of_keys(t);
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
    return s.ragged ? sdpa_tensors * (8 * (s.batch + 1) + scratch_alignment) + 2 * (4 * s.batch + scratch_alignment)
                    : 0;
  }
};

}  // namespace so
