#include "ops/attention_tiles.h"

#include "ops/cudnn_workspace.h"

namespace so {
namespace {

constexpr std::int64_t heads_at_a_time = 3;
constexpr std::int64_t bf16_bytes = 2, fp32_bytes = 4, alignment = 256;

// More than the alignment of a document's buffers and the tables of ragged tiles take.
constexpr std::int64_t allowance = 32 * alignment;

}  // namespace

AttentionTiles attention_tiles(std::int64_t heads, std::int64_t kv_heads, std::int64_t rows) {
  const std::int64_t group = heads / kv_heads;
  AttentionTiles tiles{rows, 1, (group + heads_at_a_time - 1) / heads_at_a_time, group};
  for (std::int64_t n = 2; n * group <= heads_at_a_time; ++n)
    if (kv_heads % n == 0) tiles.kv_heads = n;
  return tiles;
}

std::int64_t AttentionTiles::workspace_bytes(std::int64_t head_dim) const {
  return cudnn_allowance(1) + cudnn_gradient_bytes({1, most_heads(), kv_heads, head_dim, rows, rows, true});
}

std::int64_t AttentionTiles::bytes(std::int64_t head_dim, std::int64_t length) const {
  const std::int64_t queries = rows * most_heads() * head_dim, keys = 2 * rows * kv_heads * head_dim;
  const std::int64_t parts_of_a_tile = (queries + keys) * bf16_bytes;
  const std::int64_t sums = (queries + 2 * length * kv_heads * head_dim) * fp32_bytes;
  const std::int64_t statistics = rows * most_heads() * fp32_bytes;
  return workspace_bytes(head_dim) + parts_of_a_tile + sums + statistics + allowance;
}

}  // namespace so
