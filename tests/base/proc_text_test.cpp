#include "base/proc_text.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

namespace so {
namespace {

TEST(KernelText, CpuLists) {
  using List = std::vector<int>;
  EXPECT_EQ(parse_cpu_list("0-3,8"), (List{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cpu_list("8,0-1,1\n"), (List{0, 1, 8}));
  EXPECT_EQ(parse_cpu_list(""), List{});
  EXPECT_EQ(parse_cpu_list("\n"), List{});
  EXPECT_EQ(parse_cpu_list("65535"), List{65535});
  EXPECT_EQ(cpu_list_text({}), "");
  EXPECT_EQ(cpu_list_text({0, 1, 2, 3, 8, 10, 11}), "0-3,8,10-11");
  for (const char* bad : {"3-1", "-1", "1-", "a", "1,,2", "1,", ",", "0-4294967295", "65536", "18446744073709551616",
                          "1 2", "0x1", "1-2-3"})
    EXPECT_EQ(parse_cpu_list(bad), std::nullopt) << bad;
  std::string again;
  for (int i = 0; i < 100; ++i) again += "0-65535,";
  EXPECT_EQ(parse_cpu_list(again + "1"), std::nullopt) << "a list that grows without end";
}

TEST(KernelText, FieldsAndWords) {
  const std::string status = "Cpus_allowed:\t3\nCpus_allowed_list:\t0-1 \nEmpty:\n";
  EXPECT_EQ(value_after(status, "Cpus_allowed"), "3");
  EXPECT_EQ(value_after(status, "Cpus_allowed_list"), "0-1");
  EXPECT_EQ(value_after(status, "Empty"), "");
  EXPECT_EQ(value_after(status, "Cpus"), std::nullopt);
  EXPECT_EQ(value_after("", "Cpus"), std::nullopt);
  EXPECT_EQ(chosen_word("always [madvise] never"), "madvise");
  for (const char* bad : {"", "always", "[]", "][", "[", "a]b[c"}) EXPECT_EQ(chosen_word(bad), std::nullopt) << bad;
  EXPECT_EQ(parse_whole("18446744073709551615"), 18446744073709551615u);
  for (const char* bad : {"", " 1", "1 ", "-1", "18446744073709551616"})
    EXPECT_EQ(parse_whole(bad), std::nullopt) << bad;
  EXPECT_EQ(parse_hex("fff"), 0xfffu);
  EXPECT_EQ(parse_hex("0xfff"), std::nullopt);
  EXPECT_EQ(parse_link_speed("2.5 GT/s PCIe"), 2.5);
  EXPECT_EQ(parse_link_speed("32 GT/s"), 32);
  for (const char* bad : {"", "Unknown", "nan GT/s", "-2 GT/s", "1e9 GT/s", "8.0"})
    EXPECT_EQ(parse_link_speed(bad), std::nullopt) << bad;
}

}  // namespace
}  // namespace so
