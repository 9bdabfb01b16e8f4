// Arrays are converted as single elements are, by every instruction set, at any length and alignment.
#include "base/bf16_arrays.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <vector>

#include "support/instruction_sets.h"

namespace so {
namespace {

using test::for_each_instruction_set;

// Every exponent and sign, NaN and Inf among them, with the lower half around the tie.
TEST(Bf16Arrays, RoundAsTheScalarType) {
  std::vector<float> in;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper)
    for (const std::uint32_t lower : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      in.push_back(std::bit_cast<float>(upper << 16 | lower));
  for_each_instruction_set([&] {
    std::vector<bf16> out(in.size());
    round_to_bf16(in.data(), out.data(), in.size());
    for (std::size_t i = 0; i < in.size(); ++i)
      ASSERT_EQ(out[i].bits, bf16(in[i]).bits) << std::hex << std::bit_cast<std::uint32_t>(in[i]);
  });
}

TEST(Bf16Arrays, WidenToTheUpperHalf) {
  std::vector<bf16> in(0x10000);
  for (std::size_t i = 0; i < in.size(); ++i) in[i].bits = static_cast<std::uint16_t>(i);
  for_each_instruction_set([&] {
    std::vector<float> out(in.size());
    widen_bf16(in.data(), out.data(), in.size());
    for (std::size_t i = 0; i < in.size(); ++i) ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]), i << 16) << i;
  });
}

TEST(Bf16Arrays, TouchNothingElse) {
  const std::vector<float> wide(100, 1.5f);
  const std::vector<bf16> narrow(100, bf16(2.5f));
  for_each_instruction_set([&] {
    for (std::size_t count = 0; count < 70; ++count)
      for (std::size_t begin = 0; begin < 3; ++begin) {
        std::vector<bf16> rounded(100);
        std::vector<float> widened(100);
        round_to_bf16(wide.data() + begin, rounded.data() + begin, count);
        widen_bf16(narrow.data() + begin, widened.data() + begin, count);
        for (std::size_t i = 0; i < rounded.size(); ++i) {
          const bool inside = i >= begin && i < begin + count;
          ASSERT_EQ(static_cast<float>(rounded[i]), inside ? 1.5f : 0.0f) << count << " from " << begin << ": " << i;
          ASSERT_EQ(widened[i], inside ? 2.5f : 0.0f) << count << " from " << begin << ": " << i;
        }
      }
  });
}

}  // namespace
}  // namespace so
