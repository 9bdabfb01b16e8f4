#include "base/finite.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/error.h"

namespace so {
namespace {

// A format's exponent, in every element of a 64-bit word. An exponent of ones alone carries into the sign's place,
// which the mask has cleared, when the exponent's lowest bit is added; so elements do not reach into each other.
struct Lanes {
  std::uint64_t exponent, lowest, sign;
};

constexpr Lanes lanes16(std::uint64_t exponent, std::uint64_t lowest) {
  constexpr std::uint64_t each = 0x0001'0001'0001'0001u;
  return {exponent * each, lowest * each, 0x8000u * each};
}

constexpr Lanes lanes_of(DType dtype) {
  constexpr std::uint64_t each32 = 0x0000'0001'0000'0001u;
  if (dtype == DType::bf16) return lanes16(0x7f80u, 0x0080u);
  if (dtype == DType::f16) return lanes16(0x7c00u, 0x0400u);
  return {0x7f80'0000u * each32, 0x0080'0000u * each32, 0x8000'0000u * each32};
}

// Bits of the words' elements that are not finite. The count is a constant so that the compiler makes vectors of it.
template <std::size_t words>
std::uint64_t non_finite_bits(const std::byte* data, const Lanes& lanes) {
  std::uint64_t found = 0;
  for (std::size_t i = 0; i < words; ++i) {
    std::uint64_t word;
    std::memcpy(&word, data + i * sizeof word, sizeof word);
    found |= (word & lanes.exponent) + lanes.lowest;
  }
  return found & lanes.sign;
}

}  // namespace

std::size_t find_non_finite(DType dtype, const void* data, std::size_t count) {
  SO_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, "elements of {}", name_of(dtype));
  constexpr std::size_t block_words = 256, block = block_words * sizeof(std::uint64_t);
  const Lanes lanes = lanes_of(dtype);
  const std::size_t size = size_of(dtype), bytes = count * size;
  const auto* const begin = static_cast<const std::byte*>(data);
  std::size_t at = 0;
  while (bytes - at >= block && non_finite_bits<block_words>(begin + at, lanes) == 0) at += block;
  // The block that has one, or what is left: element by element.
  for (; at < bytes; at += size) {
    std::uint64_t element = 0;
    std::memcpy(&element, begin + at, size);  // little-endian: the lowest element of a word
    const std::uint64_t first = ~std::uint64_t{0} >> (64 - 8 * size);
    if ((((element & lanes.exponent & first) + (lanes.lowest & first)) & lanes.sign & first) != 0) break;
  }
  return at / size;
}

}  // namespace so
