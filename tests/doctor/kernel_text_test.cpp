#include "doctor/kernel_text.h"

#include <gtest/gtest.h>

#include "doctor/machine_tree.h"

namespace so {
namespace {

TEST(KernelText, CpuLists) {
  using List = std::vector<int>;
  EXPECT_EQ(parse_cpu_list("0-3,8"), (List{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_cpu_list("8,0-1,1\n"), (List{0, 1, 8}));
  EXPECT_EQ(parse_cpu_list(""), List{});
  EXPECT_EQ(parse_cpu_list("\n"), List{});
  EXPECT_EQ(parse_cpu_list("65535"), List{65535});
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

TEST(MachineFilesTest, ReadsWhatIsThere) {
  const test::MachineTree tree;
  tree.file("/proc/x", "12\n\n");
  tree.file("/proc/huge", std::string(3 << 20, '7'));
  std::filesystem::create_directories(tree.path() / "proc/folder");
  const MachineFiles files(tree.path());
  EXPECT_EQ(files.text("/proc/x"), "12");
  EXPECT_EQ(files.number("/proc/x"), 12u);
  EXPECT_EQ(files.text("/proc/none"), std::nullopt);
  EXPECT_EQ(files.text("/proc/folder"), std::nullopt);
  EXPECT_EQ(files.text("/proc/huge")->size(), 1u << 20);
  EXPECT_EQ(files.list("/proc"), (std::vector<std::string>{"folder", "huge", "x"}));
  EXPECT_TRUE(files.list("/none").empty());
  EXPECT_FALSE(MachineFiles().text("/proc/self/status")->empty()) << "a file of the kernel's, which has no size";
}

}  // namespace
}  // namespace so
