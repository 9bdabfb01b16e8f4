#include "base/quantities.h"

#include <gtest/gtest.h>

namespace so {
namespace {

TEST(ParseBytes, TakesUnitsOfBothKinds) {
  EXPECT_EQ(parse_bytes("0"), 0);
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("-1"), -1);
  EXPECT_EQ(parse_bytes("64e6"), 64'000'000);
  EXPECT_EQ(parse_bytes("20GB"), 20'000'000'000);
  EXPECT_EQ(parse_bytes("20 GiB"), std::int64_t{20} << 30);
  EXPECT_EQ(parse_bytes("1.5MB"), 1'500'000);
  EXPECT_EQ(parse_bytes("0.0015 kB"), 2) << "to the next whole byte";
  EXPECT_EQ(parse_bytes("3KiB"), 3072);
  EXPECT_EQ(parse_bytes("2TB"), 2'000'000'000'000);
  EXPECT_EQ(parse_bytes("12B"), 12);
}

TEST(ParseBytes, RefusesTheRest) {
  for (const char* text : {"", "GB", "20 G B", "20gb", "20GBs", "1.5", "1.5B", "inf", "nan", "1e30", "9e9TB", "0x10"})
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
}

}  // namespace
}  // namespace so
