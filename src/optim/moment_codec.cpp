#include "optim/moment_codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "optim/moment_blocks.h"

namespace so {
namespace {

using CodeValues = std::array<float, 256>;  // of the scale

template <class Value>
CodeValues code_values(const Value& value) {
  CodeValues values{};
  for (std::size_t code = 0; code < values.size(); ++code) values[code] = value(static_cast<std::uint8_t>(code), 1.0f);
  return values;
}

const CodeValues& values_of(Moment moment) {
  static const CodeValues first = code_values(first_moment_value), second = code_values(second_moment_value);
  return moment == Moment::first ? first : second;
}

}  // namespace

void decode_moments(Moment moment, std::span<const std::uint8_t> codes, const float* scales, std::int64_t in_block,
                    float* to) {
  const CodeValues& values = values_of(moment);
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const float scale = scales[(in_block + static_cast<std::int64_t>(i)) / moment_block], value = values[codes[i]];
    to[i] = std::isinf(scale) ? std::copysign(scale, value) : value * scale;
  }
}

void encode_moments(Moment moment, std::span<const float> from, std::uint8_t* codes, float* scales) {
  for (std::size_t begin = 0; begin < from.size(); begin += static_cast<std::size_t>(moment_block)) {
    const auto block = from.subspan(begin, std::min(from.size() - begin, static_cast<std::size_t>(moment_block)));
    const MomentScale scale(largest_magnitude(block));
    *scales++ = scale.value;
    for (const float x : block)
      *codes++ = moment == Moment::first ? first_moment_code(x, scale, FirstMomentCodes::half)
                                         : second_moment_code(x, scale, SecondMomentCodes::half);
  }
}

}  // namespace so
