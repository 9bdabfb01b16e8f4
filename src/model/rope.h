// The RoPE table of a model.
#pragma once

#include <cstdint>
#include <vector>

#include "model/spec.h"

namespace so {

// Frequencies of the rotary_dim/2 pairs, scaling applied. Computed in fp32 as transformers does, since the angle at a
// late position magnifies the last bit of a frequency. `positions` is how many the table will have: longrope has other
// frequencies for more than original_positions. (transformers looks at each batch's longest document for that.) dynamic
// has those of a sequence of `positions`.
std::vector<float> rope_frequencies(const RopeSpec& rope, std::int64_t positions);

// [positions, 2, rotary_dim / 2]: cosines, then sines, times the attention factor, for positions 0 .. positions - 1.
std::vector<float> rope_table(const RopeSpec& rope, std::int64_t positions);

// The tables of a model, one below the other: rope, then local_rope where there is one.
// [rope_tables(spec) * positions, 2, rotary_dim / 2].
inline std::int64_t rope_tables(const DecoderSpec& spec) { return spec.local_rope ? 2 : 1; }
std::vector<float> rope_table(const DecoderSpec& spec, std::int64_t positions);
std::size_t rope_table_bytes(const DecoderSpec& spec, std::int64_t positions);

}  // namespace so
