// The order in which an epoch visits the documents.
#pragma once

#include <cstdint>
#include <vector>

namespace so {

// Where training is in the data. With the seed and the options this is all there is to know: order, packing and
// batches of an epoch are computed from them anew.
struct SamplerState {
  std::int64_t epoch = 0;     // from 0
  std::int64_t position = 0;  // rows of this epoch that have been consumed, by all ranks together

  bool operator==(const SamplerState&) const = default;
};

// A permutation of 0..count-1; without `shuffle` the identity. The same on every machine:
//
//   The generator is splitmix64: state += 0x9e3779b97f4a7c15, output mix(state), where mix(x) is x ^= x >> 30,
//   x *= 0xbf58476d1ce4e5b9, x ^= x >> 27, x *= 0x94d049bb133111eb, x ^= x >> 31, all modulo 2^64. It starts from
//   state = mix(mix(seed) + epoch).
//   below(n) draws until the output r is at least 2^64 mod n and returns r mod n, so that every value is equally
//   likely. Fisher-Yates: for i = count-1 down to 1, exchange elements i and below(i + 1).
std::vector<std::int64_t> epoch_order(std::int64_t count, std::uint64_t seed, std::int64_t epoch, bool shuffle);

}  // namespace so
