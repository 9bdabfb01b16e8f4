#include "doctor/machine_files.h"

#include <gtest/gtest.h>

#include "doctor/machine_tree.h"

namespace so {
namespace {

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
