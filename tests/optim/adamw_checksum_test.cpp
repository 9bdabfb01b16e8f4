// AdamW gives the same bits on every processor. The checksums were made on x86-64 and are compared on x86-64 and, under
// qemu, with NEON and with SVE vectors of several lengths (scripts/test_aarch64.sh).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "base/xxh3.h"
#include "optim/adamw.h"

namespace so {
namespace {

constexpr std::size_t kElements = 4099;  // no multiple of any vector
constexpr int kSteps = 3;

// Numbers of both signs and of sizes from 2^-20 to 2^3, by integer arithmetic and exact scaling alone, since a
// library's distributions may differ between machines.
std::vector<float> portable_numbers(std::uint64_t seed) {
  std::vector<float> all;
  for (std::size_t i = 0; i < kElements; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const float fraction = static_cast<float>(static_cast<std::int32_t>(seed >> 32) / 256) / (1 << 23);
    all.push_back(std::ldexp(fraction, static_cast<int>((seed >> 8) % 24) - 20));
  }
  return all;
}

// The checksum of master weights, moments and bf16 weights after some steps, of which the second is clipped.
template <class Gradient, class Moment>
std::uint64_t checksum() {
  std::vector<float> p = portable_numbers(1);
  std::vector<Moment> m(kElements), v(kElements);
  std::vector<bf16> weights(kElements);
  for (int t = 1; t <= kSteps; ++t) {
    std::vector<Gradient> gradient;
    for (const float x : portable_numbers(static_cast<std::uint64_t>(t) + 1)) gradient.push_back(Gradient(x));
    const AdamWStep step =
        make_adamw_step({.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8}, 1e-2, 0.1, t, t == 2 ? 0.3f : 1.0f);
    const AdamWState state{p.data(), m.data(), v.data()};
    adamw_update(step, true, std::span<const Gradient>(gradient), state, state, std::span<bf16>(weights));
  }
  Xxh3Stream hash;
  hash.add(std::as_bytes(std::span(p)));
  hash.add(std::as_bytes(std::span(m)));
  hash.add(std::as_bytes(std::span(v)));
  hash.add(std::as_bytes(std::span(weights)));
  return hash.value();
}

// The same of moments in 8 bits.
template <class Gradient>
std::uint64_t checksum_of_blocks() {
  std::vector<float> p = portable_numbers(1);
  std::vector<std::uint8_t> m(kElements), v(kElements);
  std::vector<float> m_scales(static_cast<std::size_t>(moment_blocks(kElements))), v_scales(m_scales.size());
  std::vector<bf16> weights(kElements);
  for (int t = 1; t <= kSteps; ++t) {
    std::vector<Gradient> gradient;
    for (const float x : portable_numbers(static_cast<std::uint64_t>(t) + 1)) gradient.push_back(Gradient(x));
    const AdamWStep step =
        make_adamw_step({.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8}, 1e-2, 0.1, t, t == 2 ? 0.3f : 1.0f);
    const AdamWState state{p.data(), {m.data(), m_scales.data()}, {v.data(), v_scales.data()}};
    adamw_update(step, true, std::span<const Gradient>(gradient), state, state, std::span<bf16>(weights));
  }
  Xxh3Stream hash;
  for (const std::vector<float>* numbers : {&p, &m_scales, &v_scales}) hash.add(std::as_bytes(std::span(*numbers)));
  hash.add(std::as_bytes(std::span(m)));
  hash.add(std::as_bytes(std::span(v)));
  hash.add(std::as_bytes(std::span(weights)));
  return hash.value();
}

TEST(AdamWChecksum, IsTheSameOnEveryProcessor) {
  for (const std::string& set : adamw_instruction_sets()) {
    for (const AdamWStores stores : {AdamWStores::cached, AdamWStores::stream_all}) {
      adamw_use_instruction_set(set);
      adamw_use_stores(stores);
      EXPECT_EQ((checksum<float, float>()), 0xc2909b2e302c01d2u) << set;
      EXPECT_EQ((checksum<bf16, float>()), 0x750339a489ff2108u) << set;
      EXPECT_EQ((checksum<float, bf16>()), 0x8f495320636965e2u) << set;
      EXPECT_EQ((checksum<bf16, bf16>()), 0xa12688f726caf268u) << set;
      EXPECT_EQ((checksum_of_blocks<float>()), 0x75f7745a76a9923du) << set;
      EXPECT_EQ((checksum_of_blocks<bf16>()), 0x3c8762ec91a63d55u) << set;
    }
  }
  adamw_use_instruction_set("");
  adamw_use_stores(AdamWStores::automatic);
}

}  // namespace
}  // namespace so
