#include "ops/ops_memory.h"

#include <algorithm>

#include "ops/attention_tiles.h"
#include "ops/cudnn_workspace.h"
#include "ops/delta_memory.h"
#include "ops/state_space_memory.h"

namespace so {
namespace {

// Matrix products (NVIDIA recommends 32 MiB for Hopper), and partial sums of reductions, which take turns.
constexpr std::size_t cuda_scratch = std::size_t{64} << 20;

// Limits cuDNN's dS in attention gradients, which is quadratic in the length of a document: 16,384 tokens get 1.5 GiB,
// which holds 48 heads of 4,096 x 4,096; then one document of four is computed at a time.
constexpr std::int64_t least_scores = std::int64_t{512} << 20, scores_per_token = 96 << 10;
static_assert(2 * attention_in_tiles_beyond == scores_per_token);
// Sums in any order are cut by key heads where they would take more than this at a time.
constexpr std::int64_t sums_in_any_order = std::int64_t{3} << 29;

// Offsets of nine tensors and two lengths for each document, whose number is rounded up by a half at most, with what
// cuDNN asks for whatever the shape, and alignment.
std::int64_t cudnn_tables(const AttentionSize& size) {
  const std::int64_t batch = size.documents * 3 / 2 + 1;
  return 9 * 8 * (batch + 1) + 2 * 4 * batch + 12 * 256 + cudnn_allowance(batch);
}

std::int64_t longest(const AttentionSize& size) { return std::min(size.longest, size.q_rows); }

// Rows of all documents, or of the longest alone in a ragged graph, whichever are more.
std::int64_t rows_in_graph(const AttentionSize& size) {
  return std::max(round_up_to(size.q_rows, 128), rounded_length(longest(size)));
}

// The scratch of an attention gradient without cuDNN's dS.
std::int64_t gradient_base(const AttentionSize& size) {
  // Row sums of dout out.
  const std::int64_t rows = rows_in_graph(size) * size.q_heads;
  std::int64_t bytes = 256 + rows * 4;
  if (size.dtype == DType::bf16) {
    bytes += cudnn_tables(size);
    // dk and dv of every query head, bf16, before heads that share a key head are added up.
    if (size.q_heads != size.kv_heads) bytes += rows * round_up_to(size.head_dim, 64) * 4;
  }
  return bytes;
}

// dq in fp32, of as many heads at a time as there is room for, at least those of one key head.
std::int64_t gradient_in_any_order(const AttentionSize& size) {
  const std::int64_t rows = rows_in_graph(size), group = size.q_heads / size.kv_heads;
  const std::int64_t a_key_head = cudnn_gradient_bytes({1, group, 1, size.head_dim, rows, rows, false});
  const std::int64_t sums = std::min(size.kv_heads * a_key_head, std::max(sums_in_any_order, a_key_head));
  // Kernels that need the row sums alone do what cuDNN does not take.
  return cudnn_tables(size) + 256 + std::max(rows * size.q_heads * 4, sums);
}

// The CPU's ops need no memory beside their arguments, and keep logits in fp32.
class CpuOpsMemory final : public OpsMemory {
 public:
  std::size_t held() const override { return 0; }
  std::size_t attention(const AttentionSize&) const override { return 0; }
  std::size_t attention_grad(const AttentionSize&) const override { return 0; }
  std::size_t attention_grad_most(const AttentionSize&) const override { return 0; }
  std::size_t delta_rule(const DeltaSize&) const override { return 0; }
  std::size_t delta_rule_grad(const DeltaSize&) const override { return 0; }
  std::size_t state_space(const StateSpaceSize&) const override { return 0; }
  std::size_t state_space_grad(const StateSpaceSize&) const override { return 0; }
  DType logits_dtype(DType) const override { return DType::f32; }
  std::int64_t logits_stride(std::int64_t vocabulary) const override { return vocabulary; }
};

class CudaOpsMemory final : public OpsMemory {
 public:
  std::size_t held() const override { return cuda_scratch; }
  std::size_t attention(const AttentionSize& size) const override;
  std::size_t attention_grad(const AttentionSize& size) const override;
  std::size_t attention_grad_most(const AttentionSize& size) const override;
  std::size_t delta_rule(const DeltaSize& size) const override { return cuda_delta_scratch(size, false); }
  std::size_t delta_rule_grad(const DeltaSize& size) const override { return cuda_delta_scratch(size, true); }
  std::size_t state_space(const StateSpaceSize& size) const override { return cuda_space_scratch(size, false); }
  std::size_t state_space_grad(const StateSpaceSize& size) const override { return cuda_space_scratch(size, true); }
  // Matrix units want the gradient of the logits in T, which overwrites them.
  DType logits_dtype(DType activations) const override { return activations; }
  std::int64_t logits_stride(std::int64_t vocabulary) const override { return round_up_to(vocabulary, gemm_multiple); }
};

std::size_t CudaOpsMemory::attention(const AttentionSize& size) const {
  if (size.dtype != DType::bf16 || size.head_dim > widest_cudnn_head) return 0;
  // The sinks in fp32.
  const std::int64_t sinks = size.sinks ? 256 + size.q_heads * 4 : 0;
  return static_cast<std::size_t>(cudnn_tables(size) + sinks);
}

std::size_t CudaOpsMemory::attention_grad(const AttentionSize& size) const {
  if (size.head_dim > widest_cudnn_gradient) return static_cast<std::size_t>(256 + size.q_rows * size.q_heads * 4);
  if (size.dtype != DType::bf16) return static_cast<std::size_t>(gradient_base(size));
  if (size.any_order) return static_cast<std::size_t>(gradient_in_any_order(size));
  const std::int64_t rows = rows_in_graph(size), in_graph = rounded_length(longest(size));
  // dS, bf16: of all heads of one document at most, else of as many at a time as there is room for.
  const std::int64_t all = rows * size.q_heads * rows * 2,
                     scores = std::min(all, std::max(least_scores, scores_per_token * size.q_rows));
  if (in_graph * in_graph * 2 <= scores) return static_cast<std::size_t>(gradient_base(size) + scores);
  // One head of the longest document would not fit: it is done in tiles, or with a window, which tiles do not know, by
  // kernels that want the row sums alone.
  const bool windowed = size.window > 0 && size.window < size.longest;
  const std::int64_t tiles =
      windowed ? 0 : attention_tiles(size.q_heads, size.kv_heads).bytes(size.head_dim, longest(size));
  return static_cast<std::size_t>(256 + rows * size.q_heads * 4 + cudnn_tables(size) + tiles);
}

std::size_t CudaOpsMemory::attention_grad_most(const AttentionSize& size) const {
  if (size.any_order || size.head_dim > widest_cudnn_gradient) return attention_grad(size);
  // dS, bf16, of all heads of all documents, were they all as long as the longest.
  const std::int64_t all = rows_in_graph(size) * size.q_heads * rounded_length(longest(size)) * 2;
  const auto most = static_cast<std::size_t>(gradient_base(size) + (size.dtype == DType::bf16 ? all : 0));
  return std::max(most, attention_grad(size));
}

}  // namespace

const OpsMemory& cpu_ops_memory() {
  static const CpuOpsMemory memory;
  return memory;
}

const OpsMemory& cuda_ops_memory() {
  static const CudaOpsMemory memory;
  return memory;
}

}  // namespace so
