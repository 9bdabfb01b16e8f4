#include "base/program_path.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "base/child_process.h"
#include "support/files.h"

namespace so {
namespace {

namespace fs = std::filesystem;

void put_program(const fs::path& file, const std::string& says) {
  std::ofstream(file) << "#!/bin/sh\necho " << says << "\n";
  fs::permissions(file, fs::perms::owner_all);
}

class ProgramPath : public testing::Test {
 protected:
  void SetUp() override {
    put_program(temporary_ / "so-program", "working directory");
    fs::create_directories(temporary_ / "installed" / "so-folder");
    put_program(temporary_ / "installed" / "so-program", "installed");
    fs::current_path(temporary_.path());
    for (const char* name : {"PATH", "LD_LIBRARY_PATH"})
      before_.emplace_back(name, std::getenv(name) == nullptr ? "" : std::getenv(name));
  }
  void TearDown() override {
    fs::current_path(started_in_);
    for (const auto& [name, value] : before_) value.empty() ? ::unsetenv(name) : ::setenv(name, value.c_str(), 1);
  }
  std::string path(const std::string& around) const {
    std::string list = around;
    list.replace(list.find('*'), 1, (temporary_ / "installed").string());
    return list;
  }

  const fs::path started_in_ = fs::current_path();
  std::vector<std::pair<const char*, std::string>> before_;
  test::TemporaryDirectory temporary_;
};

TEST_F(ProgramPath, IsOfAbsoluteDirectoriesAlone) {
  for (const char* around : {":*", ".:*", "::*:", "./:*", "..:.:*:bin", "*:", "so-folder:*"}) {
    ::setenv("PATH", path(around).c_str(), 1);
    EXPECT_EQ(find_program("so-program"), temporary_ / "installed" / "so-program") << around;
    ChildProcess child({"so-program"});
    EXPECT_EQ(child.read_line(100), "installed") << around;
  }
  for (const char* alone : {"", ":", ".", "..:."}) {
    ::setenv("PATH", alone, 1);
    EXPECT_EQ(find_program("so-program"), std::nullopt) << alone;
  }
  ::setenv("PATH", path("*").c_str(), 1);
  EXPECT_EQ(find_program("so-folder"), std::nullopt);
  EXPECT_EQ(find_program("./so-program"), std::nullopt);
  EXPECT_EQ(find_program((temporary_ / "so-program").string()), temporary_ / "so-program");
  ::unsetenv("PATH");
  EXPECT_TRUE(find_program("sh"));
}

TEST_F(ProgramPath, AndItsLikeReachNoProgramWithTheWorkingDirectoryInThem) {
  ::setenv("PATH", ":/usr/bin:.:/bin:", 1);
  ::setenv("LD_LIBRARY_PATH", "lib::/nowhere/lib:", 1);
  ChildProcess child({"sh", "-c", "pwd; echo \"$PATH\"; echo \"$LD_LIBRARY_PATH\""});
  EXPECT_EQ(child.read_line(100), "/");
  EXPECT_EQ(child.read_line(100), "/usr/bin:/bin");
  EXPECT_EQ(child.read_line(100), "/nowhere/lib");
  ::setenv("LD_LIBRARY_PATH", ":", 1);
  for (const std::string& variable : environment_of_programs())
    EXPECT_FALSE(variable.starts_with("LD_LIBRARY_PATH=")) << variable;
}

TEST_F(ProgramPath, OfLibrariesIsReadWithoutTheWorkingDirectory) {
  for (const char* list : {":/nowhere/lib", "/nowhere/lib:", "lib:/nowhere/lib", ".;/nowhere/lib", "/nowhere/lib;;"}) {
    ::setenv("LD_LIBRARY_PATH", list, 1);
    const pid_t child = ::fork();
    if (child == 0) {  // becomes this program again, which looks
      std::vector<std::string> words{"test_base", "--gtest_filter=ProgramPathOfTheChild.*", "--gtest_brief=1"};
      leave_libraries_of_working_directory(pointers_to(words).data());
      ::_exit(2);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << list;
  }
  for (const char* list : {"/nowhere/lib", "$ORIGIN/../lib:/nowhere", ""}) {  // nothing to be left out: it goes on
    ::setenv("LD_LIBRARY_PATH", list, 1);
    leave_libraries_of_working_directory(nullptr);
  }
}

TEST(ProgramPathOfTheChild, HasNoWorkingDirectory) {
  const std::string list = std::getenv("LD_LIBRARY_PATH") == nullptr ? "" : std::getenv("LD_LIBRARY_PATH");
  const bool is_child = list.find("/nowhere/lib") != std::string::npos;
  EXPECT_TRUE(!is_child || list == "/nowhere/lib") << list;
}

}  // namespace
}  // namespace so
