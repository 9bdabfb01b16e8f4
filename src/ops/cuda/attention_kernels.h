// Attention without a library: what runs where cuDNN does not (attention.h says when). Three sets of kernels with one
// interface: on the tensor cores for bf16 whose rows can be read 16 bytes at a time, on Hopper's (hopper/) for heads of
// 64, 128, 256 and 512 of such rows, and plain fp32 arithmetic for all else. All keep sums in fp32 and add them in a
// fixed order; backward computes the scores again, for dq and for dk and dv by themselves, so that no two blocks add to
// one element.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/ops.h"

namespace so {

// Heads as kernels see them: element (n, h, d) is at[n * width + h * head_dim + d].
struct HeadsView {
  void* at = nullptr;
  std::int64_t width = 0;
};

// Row r of document i and head h has its log-sum-exp at lse[cu_q[i] * heads + h * head + r * row].
struct LseLayout {
  std::int64_t head = 1, row = 0;
};

struct AttentionArguments {
  HeadsView q, k, v, out;
  HeadsView dout, dq, dk, dv;  // backward
  float* lse = nullptr;
  LseLayout lse_layout;
  float* delta = nullptr;  // backward: [q_rows, heads], from attention_delta()
  const std::int32_t *cu_q = nullptr, *cu_k = nullptr;
  const void* sinks = nullptr;  // [heads], of q's dtype; null: none
  std::int64_t q_rows = 0, k_rows = 0;
  int documents = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int window = 0;  // keys that a query sees at most; at least 1, at most k_rows + 1
  float scale = 0;
};

// Largest head dimension of the plain kernels, and of the tensor cores'.
inline constexpr int max_kernel_head_dim = 512, max_tensor_core_head_dim = 256;

// Whether the tensor cores' kernels take these heads: head_dim and rows in pieces of 16 bytes, and `shared_memory`
// (bytes that a block of this GPU may have) enough.
bool tensor_core_attention_takes(int head_dim, std::int64_t shared_memory);
void tensor_core_attention(cudaStream_t stream, const AttentionArguments& a);
void tensor_core_attention_grad(cudaStream_t stream, const AttentionArguments& a);

// On GPUs of capability 9.0. Forward, heads of 64 only.
constexpr bool hopper_attention_takes(int head_dim) { return head_dim == 64 || head_dim == 128 || head_dim == 256; }
void hopper_attention(cudaStream_t stream, const AttentionArguments& a);
void hopper_attention_grad(cudaStream_t stream, const AttentionArguments& a);
void hopper_attention_grad_256(cudaStream_t stream, const AttentionArguments& a);  // what that calls for heads of 256
// The gradient faster, for self-attention (every document's queries are its keys' rows): scores are computed once.
inline bool hopper_attention_takes_narrow(const AttentionArguments& a) {
  return a.head_dim == 64 && a.window <= 129 && a.heads / a.kv_heads >= 3;
}
void hopper_attention_grad_narrow(cudaStream_t stream, const AttentionArguments& a, int multiprocessors);
// The forward pass is faster too where the query heads of a key head are a multiple of this.
inline constexpr int narrow_forward_heads = 8, narrow_forward_window = 129;
inline bool hopper_attention_takes_narrow_forward(const AttentionArguments& a) {
  return a.head_dim == 64 && a.window <= narrow_forward_window && a.heads / a.kv_heads % narrow_forward_heads == 0;
}
void hopper_attention_narrow(cudaStream_t stream, const AttentionArguments& a);

// Heads of 512, which cuDNN does not take.
constexpr bool hopper_attention_takes_wide(int head_dim) { return head_dim == 512; }
void hopper_attention_wide(cudaStream_t stream, const AttentionArguments& a);
void hopper_attention_wide_grad(cudaStream_t stream, const AttentionArguments& a);

void plain_attention(cudaStream_t stream, DType dtype, const AttentionArguments& a);
void plain_attention_grad(cudaStream_t stream, DType dtype, const AttentionArguments& a);

// delta[n, h] = sum over d of dout out, what all backward kernels need first.
void attention_delta(cudaStream_t stream, DType dtype, const AttentionArguments& a);

// Brings sinks into the result of attention without them, bf16 in 16-byte pieces: with lse' = log(exp(lse) +
// exp(sink)), lse = lse' and out *= exp(lse - lse'). Rows of no document are left alone.
void apply_sinks(cudaStream_t stream, const AttentionArguments& a);

// dsinks[h] = (+) -(sum over rows of documents of exp(sink - lse) rowsum(dout out)), from lse and delta, or
// where there is none from out and dout. Partial sums go through `scratch`, at least sink_gradient_scratch bytes of it.
inline constexpr std::size_t sink_gradient_scratch = std::size_t{1} << 20;
void sink_gradient(cudaStream_t stream, DType dtype, const AttentionArguments& a, Tensor dsinks, Accumulate mode,
                   void* scratch);

// Where ragged tensors' documents begin, in elements, and how long they are: offsets[t][i] = cu[i] * widths[t] for
// i <= batch, lengths[i] = cu[i + 1] - cu[i] for i < batch. Beyond `documents` they are empty, at the end.
struct RaggedOffsets {
  static constexpr int most = 9;
  std::int64_t* offsets[most];
  std::int64_t widths[most];
  bool keys[most];  // cu_k, else cu_q
  int tensors = 0;
  std::int32_t *lengths_q = nullptr, *lengths_k = nullptr;
};
void ragged_offsets(cudaStream_t stream, const RaggedOffsets& to, const std::int32_t* cu_q, const std::int32_t* cu_k,
                    int documents, int batch);

// Adds up partial sums of a head, bf16, in order: to[n, d] = sum over p of parts[p, n, d], for the rows n of documents,
// [cu[0], cu[documents]), or all `rows` where cu is null. 16-byte pieces.
struct PartialSums {
  HeadsView to;
  const void* parts = nullptr;  // [count, rows, head_dim]
  int count = 0, head_dim = 0;
  std::int64_t rows = 0;
};
void add_partial_sums(cudaStream_t stream, const PartialSums& dk, const PartialSums& dv, const std::int32_t* cu,
                      int documents);

// A tile of a long document gives a part of its dq, dk or dv, which is added to their sum: sum = part if it is the
// first, else sum + part. The last sum goes, rounded once, to where the gradient lies. All are accessed in 16-byte
// pieces.
struct TileSum {
  const void* part = nullptr;  // bf16 [rows, columns]
  float* sum = nullptr;        // [rows, columns]
  HeadsView to;                // bf16
  std::int64_t rows = 0, columns = 0;
  bool first = false, last = false;
};
void add_tile(cudaStream_t stream, const TileSum (&sums)[3]);

// Copies the log-sum-exp of the rows [first_row, first_row + rows) of the document that begins at row `begin`, of some
// heads: row r of head h to to[h * layout.head + r * layout.row].
void copy_statistics(cudaStream_t stream, const AttentionArguments& a, std::int64_t begin, std::int64_t first_row,
                     std::int64_t rows, std::int64_t first_head, std::int64_t heads, LseLayout layout, float* to);

// to = 0, queries, 0, keys: what ragged_offsets() reads, of one document.
void one_document(cudaStream_t stream, std::int32_t* to, std::int32_t queries, std::int32_t keys);

}  // namespace so
