// 8-bit moments (moment_blocks.h) as fp32, and fp32 as 8-bit moments rounded to nearest: for files, and for whoever
// reads or writes state in fp32. What is decoded is encoded again as the same codes and scales.
#pragma once

#include <cstdint>
#include <span>

namespace so {

enum class Moment : std::uint8_t { first, second };

// `scales`: from that of the first code's block on, of whose elements `in_block` lie before it.
void decode_moments(Moment moment, std::span<const std::uint8_t> codes, const float* scales, std::int64_t in_block,
                    float* to);
// Whole blocks, of which the last may be short.
void encode_moments(Moment moment, std::span<const float> from, std::uint8_t* codes, float* scales);

}  // namespace so
