#include "base/mapping_guard.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "base/file.h"
#include "support/files.h"
#include "support/sanitized.h"

namespace so {
namespace {

using test::TemporaryDirectory;

// Each in a process of its own, started afresh: the signal ends it.
class MappingGuardDeathTest : public testing::Test {
 protected:
  MappingGuardDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

unsigned read_after_cut(const std::filesystem::path& path, std::size_t at) {
  test::write_file(path, std::string(100'000, 'x'));
  MappedFile first(path);
  const MappedFile file = std::move(first);
  std::filesystem::resize_file(path, 5000);
  std::filesystem::remove_all(path.parent_path());  // nobody will after the signal; the mapping has the file still
  return static_cast<unsigned>(*const_cast<const volatile std::byte*>(file.bytes().data() + at));
}

TEST_F(MappingGuardDeathTest, AShortenedFileIsNamedAndTheExitCodeIsTwo) {
  TemporaryDirectory temporary;
  EXPECT_EXIT(read_after_cut(temporary / "data\n.jsonl", 50'000), testing::ExitedWithCode(2),
              "^superoffload: .*/data\\?\\.jsonl was shortened.*start again\n$");
  EXPECT_EXIT(::_exit(static_cast<int>(read_after_cut(temporary / "data.jsonl", 4'000))), testing::ExitedWithCode('x'),
              "");
}

TEST_F(MappingGuardDeathTest, FaultsElsewhereAreNotOurs) {
  if (test::sanitized) GTEST_SKIP() << "a sanitizer has its own handler of SIGBUS";
  TemporaryDirectory temporary;
  test::write_file(temporary / "data", "x");
  EXPECT_EXIT(
      {
        { const MappedFile file(temporary / "data"); }
        ::raise(SIGBUS);
        ::raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST(MappingGuard, ManyMappingsComeAndGo) {
  TemporaryDirectory temporary;
  test::write_file(temporary / "data", "x");
  for (int round = 0; round < 3; ++round) {
    std::vector<MappedFile> files;
    for (int i = 0; i < 1000; ++i) files.emplace_back(temporary / "data");
    EXPECT_EQ(files.back().text(), "x");
  }
}

}  // namespace
}  // namespace so
