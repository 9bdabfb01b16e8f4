// The RoPE table of a model.
#pragma once

#include <cstdint>
#include <vector>

#include "base/tensor.h"
#include "model/spec.h"

namespace so {

// Frequencies of the rotary_dim/2 pairs, scaling applied. Computed in fp32 as transformers does, since the angle at a
// late position magnifies the last bit of a frequency. longrope and dynamic have other frequencies for documents of
// more than original_positions tokens: these are a document's of `tokens`.
std::vector<float> rope_frequencies(const RopeSpec& rope, std::int64_t tokens);

// Which heads a table turns. Those of queries differ where RopeSpec::query_growth is above 0.
enum class RotatedHeads : std::uint8_t { keys, queries };

// [positions, 2, rotary_dim / 2]: cosines, then sines, times the attention factor and, for queries, times what grows
// with the position; for each position of a document of `positions` tokens.
std::vector<float> rope_table(const RopeSpec& rope, std::int64_t positions, RotatedHeads heads = RotatedHeads::keys);

// Which rows of a model's tables a document takes. With longrope that depends on the document's length, so where some
// may be longer than original_positions, a table has the rows of shorter documents first, and below them those of
// longer ones.
class RopeRows {
 public:
  RopeRows() = default;  // one set of rows for all
  RopeRows(const DecoderSpec& spec, std::int64_t positions);
  std::int64_t count() const { return count_; }  // of one table
  // The row of position 0 in a document of `tokens` tokens.
  std::int64_t first(std::int64_t tokens) const { return shorter_ > 0 && tokens > shorter_ ? shorter_ : 0; }
  bool differ() const { return shorter_ > 0; }

 private:
  std::int64_t count_ = 0;
  std::int64_t shorter_ = 0;  // rows of documents that are no longer; 0: all have the same rows
};

// The tables of a model, one behind the other: rope, then local_rope where there is one, then rope for queries where
// that is another table; each [RopeRows::count(), 2, rotary_dim / 2], for documents of up to `positions` tokens.
std::vector<float> rope_table(const DecoderSpec& spec, std::int64_t positions);
std::size_t rope_table_bytes(const DecoderSpec& spec, std::int64_t positions);
inline bool queries_have_own_table(const DecoderSpec& spec) { return spec.rope.query_growth != 0; }
// Numbers that all tables together have for a row.
std::int64_t rope_width(const DecoderSpec& spec);
// Returns the one that the heads of a layer which rotates take, of `all`: f32 [RopeRows::count() * rope_width()].
Tensor rope_table_of(const DecoderSpec& spec, Tensor all, LayerRotation rotation, RotatedHeads heads);

}  // namespace so
