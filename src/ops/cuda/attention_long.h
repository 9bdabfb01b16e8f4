// The gradient of one long document by cuDNN, tile by tile (ops/attention_tiles.h).
#pragma once

#include <cstdint>

#include "ops/attention_tiles.h"
#include "ops/cuda/attention_call.h"
#include "ops/cuda/attention_cudnn.h"

namespace so {

class LongDocuments {
 public:
  // Takes tiles.bytes(head_dim, longest) of the call's scratch, for documents of at most `longest` rows. `call`:
  // self-attention without a window, rows in pieces of 16 bytes.
  LongDocuments(CudnnSdpa& cudnn, AttentionCall call, const AttentionTiles& tiles, std::int64_t longest);

  // Enqueues the gradient of the document that has the rows [begin, begin + length), to the same bits every time.
  void gradient(std::int64_t begin, std::int64_t length);

 private:
  struct Document {
    std::int64_t begin = 0, length = 0, tiles = 0;
  };
  struct HeadRange {
    std::int64_t first = 0, count = 0;  // of queries
    std::int64_t kv_first = 0, kv_count = 0;
    bool first_part = false, last_part = false;  // of those that share their key heads
  };
  void tile(const Document& document, const HeadRange& heads, std::int64_t queries, std::int64_t keys);
  SdpaShape shape(const HeadRange& heads, std::int64_t queries, std::int64_t keys, bool diagonal) const;
  // Where a tensor of the call has a row and a head.
  HeadsView at(const Heads* tensor, std::int64_t row, std::int64_t head) const;
  std::int64_t rows_of(const Document& document, std::int64_t tile) const;
  std::int64_t graph_length(std::int64_t rows) const;
  // Lays out and fills in where a ragged tile's tensors begin and end.
  void ragged_tables(const SdpaShape& shape, std::int64_t queries, std::int64_t keys, SdpaMemory& memory);

  CudnnSdpa& cudnn_;
  AttentionCall call_;
  const AttentionTiles tiles_;
  std::byte* workspace_ = nullptr;
  std::int64_t workspace_bytes_ = 0;
  std::uint16_t *dq_part_ = nullptr, *dk_part_ = nullptr, *dv_part_ = nullptr;  // bf16 bits
  float *dq_sum_ = nullptr, *dk_sum_ = nullptr, *dv_sum_ = nullptr, *statistics_ = nullptr;
  std::int64_t* offsets_ = nullptr;                      // [2] of each tensor
  std::int32_t *lengths_ = nullptr, *bounds_ = nullptr;  // of queries and keys; where they begin and end
};

}  // namespace so
