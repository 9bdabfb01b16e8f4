// The one bit mixer that hashes and generators of the program share.
#pragma once

#include <cstdint>

namespace so {

// One round of splitmix64's output function (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
// 2014): a bijection of 64-bit words in which every input bit affects every output bit.
constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace so
