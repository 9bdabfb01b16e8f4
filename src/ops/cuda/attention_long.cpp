#include "ops/cuda/attention_long.h"

#include <algorithm>

namespace so {

LongDocuments::LongDocuments(CudnnSdpa& cudnn, AttentionCall call, const AttentionTiles& tiles, std::int64_t longest)
    : cudnn_(cudnn), call_(call), tiles_(tiles) {
  const std::int64_t dim = call_.q->head_dim, queries = tiles.rows * tiles.most_heads() * dim,
                     keys = tiles.rows * tiles.kv_heads * dim, all_keys = longest * tiles.kv_heads * dim;
  dq_part_ = call_.take<std::uint16_t>(queries);
  dk_part_ = call_.take<std::uint16_t>(keys);
  dv_part_ = call_.take<std::uint16_t>(keys);
  dq_sum_ = call_.take<float>(queries);
  dk_sum_ = call_.take<float>(all_keys);
  dv_sum_ = call_.take<float>(all_keys);
  statistics_ = call_.take<float>(tiles.rows * tiles.most_heads());
  offsets_ = call_.take<std::int64_t>(2 * sdpa_tensors);
  lengths_ = call_.take<std::int32_t>(2);
  bounds_ = call_.take<std::int32_t>(4);
  workspace_bytes_ = tiles.workspace_bytes(dim);
  workspace_ = call_.take<std::byte>(workspace_bytes_);
}

std::int64_t LongDocuments::rows_of(const Document& document, std::int64_t tile) const {
  return std::min(tiles_.rows, document.length - tile * tiles_.rows);
}

HeadsView LongDocuments::at(const Heads* tensor, std::int64_t row, std::int64_t head) const {
  HeadsView view = AttentionCall::view(tensor);
  view.at = static_cast<std::byte*>(view.at) + (row * view.width + head * tensor->head_dim) * 2;
  return view;
}

// All documents of a dense call are as long as each other, so that their last tile is one more length for graphs, and
// some GPUs' cuDNN takes no ragged ones.
std::int64_t LongDocuments::graph_length(std::int64_t rows) const { return call_.dense ? rows : rounded_length(rows); }

void LongDocuments::gradient(std::int64_t begin, std::int64_t length) {
  const Document document{begin, length, (length + tiles_.rows - 1) / tiles_.rows};
  for (std::int64_t kv = 0; kv < call_.k->heads; kv += tiles_.kv_heads)
    for (std::int64_t part = 0; part < tiles_.parts; ++part) {
      const HeadRange heads{kv * tiles_.group + tiles_.first_head(part),
                            tiles_.heads(part),
                            kv,
                            tiles_.kv_heads,
                            part == 0,
                            part + 1 == tiles_.parts};
      for (std::int64_t queries = 0; queries < document.tiles; ++queries) {
        const std::int64_t rows = rows_of(document, queries);
        // Dense graphs take statistics by head, ragged ones by row.
        const bool ragged = rows != graph_length(rows);
        copy_statistics(call_.stream, call_.arguments(), document.begin, queries * tiles_.rows, rows, heads.first,
                        heads.count, ragged ? LseLayout{1, heads.count} : LseLayout{rows, 1}, statistics_);
        for (std::int64_t keys = 0; keys <= queries; ++keys) tile(document, heads, queries, keys);
      }
    }
}

SdpaShape LongDocuments::shape(const HeadRange& heads, std::int64_t queries, std::int64_t keys, bool diagonal) const {
  SdpaShape s = call_.shape(true, true);
  s.batch = 1;
  s.length = graph_length(queries), s.key_length = graph_length(keys);
  s.ragged = s.length != queries || s.key_length != keys;
  s.causal = diagonal;
  s.heads = s.stats_heads = heads.count, s.kv_heads = heads.kv_count;
  s.dq_width = heads.count * s.head_dim;
  s.dk_width = s.dv_width = heads.kv_count * s.head_dim;
  return s;
}

void LongDocuments::ragged_tables(const SdpaShape& shape, std::int64_t queries, std::int64_t keys, SdpaMemory& memory) {
  RaggedOffsets offsets;
  for (int i = 0; i < sdpa_tensors; ++i) {
    memory.offsets[static_cast<std::size_t>(i)] = offsets.offsets[i] = offsets_ + 2 * i;
    offsets.widths[i] = shape.width(static_cast<SdpaTensor>(i));
    offsets.keys[i] = of_keys(static_cast<SdpaTensor>(i));
  }
  offsets.tensors = sdpa_tensors;
  offsets.lengths_q = memory.lengths_q = lengths_;
  offsets.lengths_k = memory.lengths_k = lengths_ + 1;
  one_document(call_.stream, bounds_, static_cast<std::int32_t>(queries), static_cast<std::int32_t>(keys));
  ragged_offsets(call_.stream, offsets, bounds_, bounds_ + 2, 1, 1);
}

void LongDocuments::tile(const Document& document, const HeadRange& heads, std::int64_t queries, std::int64_t keys) {
  const std::int64_t q_rows = rows_of(document, queries), k_rows = rows_of(document, keys);
  const std::int64_t q_row = document.begin + queries * tiles_.rows, k_row = document.begin + keys * tiles_.rows;
  const SdpaShape s = shape(heads, q_rows, k_rows, queries == keys);
  SdpaMemory memory;
  const auto set = [&](SdpaTensor t, void* p) { memory.data[static_cast<std::size_t>(t)] = p; };
  set(SdpaTensor::q, at(call_.q, q_row, heads.first).at);
  set(SdpaTensor::out, at(call_.out, q_row, heads.first).at);
  set(SdpaTensor::dout, at(call_.dout, q_row, heads.first).at);
  set(SdpaTensor::k, at(call_.k, k_row, heads.kv_first).at);
  set(SdpaTensor::v, at(call_.v, k_row, heads.kv_first).at);
  set(SdpaTensor::stats, statistics_);
  set(SdpaTensor::dq, dq_part_);
  set(SdpaTensor::dk, dk_part_);
  set(SdpaTensor::dv, dv_part_);
  if (s.ragged) ragged_tables(s, q_rows, k_rows, memory);
  memory.workspace = workspace_;
  memory.workspace_bytes = static_cast<std::size_t>(workspace_bytes_);
  cudnn_.run(call_.stream, s, memory);

  const std::int64_t key_sums = keys * tiles_.rows * s.dk_width;
  const bool first = heads.first_part && queries == keys, last = heads.last_part && queries + 1 == document.tiles;
  const TileSum sums[] = {
      {dq_part_, dq_sum_, at(call_.dq, q_row, heads.first), q_rows, s.dq_width, keys == 0, keys == queries},
      {dk_part_, dk_sum_ + key_sums, at(call_.dk, k_row, heads.kv_first), k_rows, s.dk_width, first, last},
      {dv_part_, dv_sum_ + key_sums, at(call_.dv, k_row, heads.kv_first), k_rows, s.dv_width, first, last}};
  add_tile(call_.stream, sums);
}

}  // namespace so
