// The search for numbers that are not finite finds each, wherever it stands and however the array is aligned.
#include "base/finite.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "support/instruction_sets.h"
#include "support/label.h"
#include "support/sanitized.h"

namespace so {
namespace {

using test::for_each_instruction_set;

struct Format {
  const char* name;
  DType dtype;
  std::vector<std::uint32_t> finite, non_finite;  // bits of elements
};

const Format formats[] = {
    {"fp32",
     DType::f32,
     {0x00000000, 0x80000000, 0x7f7fffff, 0xff7fffff, 0x00000001, 0x807fffff, 0x3f800000, 0x7f000000},
     {0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f800001, 0xffffffff}},
    {"bf16",
     DType::bf16,
     {0x0000, 0x8000, 0x7f7f, 0xff7f, 0x0001, 0x3f80, 0x7c00},
     {0x7f80, 0xff80, 0x7fc0, 0xffff, 0x7f81}},
    {"fp16",
     DType::f16,
     {0x0000, 0x8000, 0x7bff, 0xfbff, 0x0001, 0x3c00, 0x7800},
     {0x7c00, 0xfc00, 0x7e00, 0xffff, 0x7c01}},
};

class Finite : public testing::TestWithParam<Format> {
 protected:
  // So many elements that are finite, `shift` bytes behind an aligned address.
  Finite() : size_(size_of(GetParam().dtype)) {}
  void fill(std::size_t count, std::size_t shift) {
    memory_.assign(count * size_ + shift, std::byte{0xff});  // not finite in front and, were it read, behind
    shift_ = shift, count_ = count;
    for (std::size_t i = 0; i < count; ++i) put(i, GetParam().finite[i % GetParam().finite.size()]);
  }
  void put(std::size_t i, std::uint32_t bits) { std::memcpy(memory_.data() + shift_ + i * size_, &bits, size_); }
  std::size_t found() const { return find_non_finite(GetParam().dtype, memory_.data() + shift_, count_); }

  std::size_t size_, shift_ = 0, count_ = 0;
  std::vector<std::byte> memory_;
};

TEST_P(Finite, EveryPositionIsSearched) {
  constexpr std::size_t count = 4900;  // several blocks and a rest
  for_each_instruction_set([&] {
    // An access outside would be one at either end of what is aligned; the other builds find all values.
    for (const std::size_t shift :
         test::sanitized ? std::vector<std::size_t>{0, 7} : std::vector<std::size_t>{0, 1, 2, 4, 7}) {
      fill(count, shift);
      ASSERT_EQ(found(), count);
      for (std::size_t i = 0; i < count; ++i) {
        put(i, GetParam().non_finite[i % GetParam().non_finite.size()]);
        ASSERT_EQ(found(), i) << "shift " << shift;
        put(i, GetParam().finite[i % GetParam().finite.size()]);
      }
    }
  });
}

TEST_P(Finite, EveryValueInEveryPlaceOfAWord) {
  for_each_instruction_set([&] {
    for (const std::uint32_t bits : GetParam().non_finite)
      for (const std::uint32_t beside : GetParam().finite)
        for (std::size_t i = 0; i < 2048; i += i < 8 ? 1 : 509) {
          fill(2048, 0);
          if (i > 0) put(i - 1, beside);
          if (i + 1 < 2048) put(i + 1, beside);
          put(i, bits);
          ASSERT_EQ(found(), i) << std::hex << bits << " beside " << beside;
        }
  });
}

TEST_P(Finite, TheFirstOfSeveralIsGiven) {
  fill(4000, 0);
  for (const std::size_t i : {3999, 3001, 3000, 17}) {
    put(i, GetParam().non_finite[0]);
    EXPECT_EQ(found(), i);
  }
}

TEST_P(Finite, NothingBehindTheEndIsLookedAt) {
  for (std::size_t count = 0; count < 40; ++count) {
    fill(count + 1, 0);
    put(count, GetParam().non_finite[0]);
    EXPECT_EQ(find_non_finite(GetParam().dtype, memory_.data(), count), count);
  }
}

SO_LABEL(no_tsan, "Base/Finite.*");
INSTANTIATE_TEST_SUITE_P(Base, Finite, testing::ValuesIn(formats), [](const auto& each) { return each.param.name; });

// All 65,536 values of the two-byte formats are judged as their fp32 is.
TEST(FiniteValues, OfTwoBytesAreJudgedAsTheirWideValue) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const bool wide = std::isfinite(std::bit_cast<float>(bits << 16));
    ASSERT_EQ(find_non_finite(DType::bf16, &half, 1) == 1, wide) << std::hex << bits;
    ASSERT_EQ(find_non_finite(DType::f16, &half, 1) == 1, (bits & 0x7c00u) != 0x7c00u) << std::hex << bits;
  }
}

}  // namespace
}  // namespace so
