#include "io/held_directory.h"

#include <gtest/gtest.h>

#include "support/io.h"

namespace so {
namespace {

using io_test::expect_error;
using io_test::TemporaryDirectory;

namespace fs = std::filesystem;

TEST(HeldDirectory, IsWhereverItIsMoved) {
  TemporaryDirectory parent;
  fs::create_directory(parent / "out");
  fs::create_directory_symlink("out", parent / "link");
  const HeldDirectory held(parent / "out"), by_link(parent / "link");
  EXPECT_EQ(held.path(), parent / "out");
  EXPECT_EQ(by_link.path(), parent / "link");
  fs::rename(parent / "out", parent / "moved");
  fs::create_directory(parent / "out");  // another
  EXPECT_EQ(held.path(), parent / "moved");
  EXPECT_EQ(by_link.path(), parent / "moved");
  fs::remove(parent / "out");
  fs::rename(parent / "moved", parent / "out");
  EXPECT_EQ(held.path(), parent / "out");
}

TEST(HeldDirectory, IsMadeAgainWhereItWritesOverNothing) {
  TemporaryDirectory parent;
  fs::create_directory(parent / "out");
  const HeldDirectory held(parent / "out");
  fs::remove(parent / "out");
  EXPECT_EQ(held.path(), parent / "out");
  EXPECT_TRUE(fs::is_directory(parent / "out"));
  fs::remove(parent / "out");
  io_test::write_file(parent / "out", "mine");
  EXPECT_EQ(held.path(), parent / "out.kept-1");
  EXPECT_EQ(held.path(), parent / "out.kept-1");
  EXPECT_TRUE(fs::is_directory(parent / "out.kept-1"));
}

TEST(HeldDirectory, HasToBeThere) {
  TemporaryDirectory parent;
  expect_error([&] { HeldDirectory(parent / "absent"); }, {"cannot open directory", "absent"});
}

}  // namespace
}  // namespace so
