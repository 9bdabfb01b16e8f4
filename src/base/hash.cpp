#include "base/hash.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

namespace so {
namespace {

static_assert(std::endian::native == std::endian::little, "hash values and the token cache are little-endian");

constexpr std::uint64_t kOdd1 = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio
constexpr std::uint64_t kOdd2 = 0xd1b54a32d192ed03u;

std::uint64_t load(const std::byte* p, std::size_t count) {
  std::uint64_t word = 0;
  std::memcpy(&word, p, count);
  return word;
}

// Xor, rotate and odd multiplication are bijections of the lane, so two inputs that differ in one word only never
// collide before the final fold.
std::uint64_t absorb(std::uint64_t lane, std::uint64_t word) { return std::rotl((lane ^ word) * kOdd1, 29) * kOdd2; }

}  // namespace

std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed) {
  // Four lanes hide the multiplier's latency.
  std::array<std::uint64_t, 4> lanes{};
  for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = mix_bits(seed + (i + 1) * kOdd1);
  const std::byte* p = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 32; left -= 32, p += 32)
    for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = absorb(lanes[i], load(p + 8 * i, 8));
  for (std::size_t i = 0; left > 0; ++i) {
    const std::size_t count = std::min<std::size_t>(left, 8);
    lanes[i] = absorb(lanes[i], load(p, count));
    p += count;
    left -= count;
  }
  // The length tells trailing zero bytes from none.
  std::uint64_t hash = mix_bits(bytes.size() + kOdd2);
  for (const std::uint64_t lane : lanes) hash = mix_bits(hash ^ lane) * kOdd1;
  return mix_bits(hash);
}

std::uint64_t hash_text(std::string_view text, std::uint64_t seed) {
  return hash_bytes(std::as_bytes(std::span(text.data(), text.size())), seed);
}

std::uint64_t hash_large(std::span<const std::byte> bytes, ThreadPool& pool,
                         const std::function<void(std::span<const std::byte>)>& passed) {
  constexpr std::size_t piece = std::size_t{1} << 20;
  std::vector<std::uint64_t> hashes((bytes.size() + piece - 1) / piece);
  pool.parallel_for(static_cast<std::int64_t>(hashes.size()), 4, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      const auto part = bytes.subspan(i * piece, std::min(piece, bytes.size() - i * piece));
      hashes[i] = hash_bytes(part, i);
      if (passed) passed(part);
    }
  });
  return hash_bytes(std::as_bytes(std::span(hashes)), bytes.size());
}

}  // namespace so
