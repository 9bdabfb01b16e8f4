// How attention's gradient is cut where a document is so long that cuDNN's deterministic gradient of one head does not
// fit into memory: that keeps dS, which is quadratic in the length. Queries and keys are cut into tiles; each tile of
// queries meets each tile of keys before it, and its own, and the parts of dq, dk and dv that come of that are added up
// in fp32 in a fixed order. This is plain arithmetic, so that a dry run plans what the backend uses.
#pragma once

#include <cstdint>

namespace so {

struct AttentionTiles {
  std::int64_t rows = 0;      // queries of a tile, and keys
  std::int64_t kv_heads = 0;  // key heads at a time
  std::int64_t parts = 0;     // of the query heads of a key head, one after another; 1 if there are several key heads
  std::int64_t group = 0;     // query heads of a key head

  // Query heads of a part: as equal as can be.
  std::int64_t first_head(std::int64_t part) const { return kv_heads * group * part / parts; }
  std::int64_t heads(std::int64_t part) const { return first_head(part + 1) - first_head(part); }
  std::int64_t most_heads() const { return (kv_heads * group + parts - 1) / parts; }

  // All that the gradient of a document of `length` rows takes beside its tensors, in bytes: cuDNN's workspace for one
  // tile, what comes of it, and the sums.
  std::int64_t workspace_bytes(std::int64_t head_dim) const;
  std::int64_t bytes(std::int64_t head_dim, std::int64_t length) const;
};

// Measured on an H100 with heads of 128, four to a key head: squares of 16,384 reach 414 TFLOP/s on the diagonal, of
// 8,192 293; left of it any tile with 32,768 or more rows of query heads reaches 474 to 491, with 16,384 381 to 406. So
// three heads at a time are worth having, which take 1.5 GiB.
inline constexpr std::int64_t attention_tile_rows = 16384;
// The longest document, alone in its batch, that needs no tiles in the scratch that is planned (ops/ops_memory.cpp);
// beside others a longer one does without them too.
inline constexpr std::int64_t attention_in_tiles_beyond = 49152;
AttentionTiles attention_tiles(std::int64_t heads, std::int64_t kv_heads, std::int64_t rows = attention_tile_rows);

}  // namespace so
