#include "base/child_process.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <string>
#include <system_error>

namespace so {
namespace {

std::string ended(ChildProcess& child) {
  try {
    std::array<char, 1> byte{};
    child.read_exact(byte);
  } catch (const ChildEnded& end) {
    return end.what();
  }
  return {};
}

TEST(ChildProcess, AnswersRequestsLargerThanAPipe) {
  ChildProcess cat({"cat"});
  const std::string text(60000, 'x');
  for (int i = 0; i < 3; ++i) {
    cat.write(text + "\n");
    EXPECT_EQ(cat.read_line(1 << 20), text);
  }
  cat.write("ab\ncd");
  EXPECT_EQ(cat.read_line(10), "ab");
  std::string rest(2, ' ');
  cat.read_exact(rest);
  EXPECT_EQ(rest, "cd");
  EXPECT_EQ(cat.wait(), 0);
}

TEST(ChildProcess, SaysHowItEnded) {
  ::signal(SIGPIPE, SIG_IGN);
  ChildProcess fails({"sh", "-c", "echo first >&2; echo 'no more' >&2; exit 4"});
  EXPECT_EQ(ended(fails), "sh ended with exit code 4: no more");
  ChildProcess killed({"sh", "-c", "kill -TERM $$"});
  EXPECT_EQ(ended(killed), "sh was ended by signal 15");
  ChildProcess quiet({"true"});
  EXPECT_EQ(quiet.wait(), 0);
  EXPECT_THROW(quiet.write("x"), ChildEnded);
  EXPECT_THROW(
      {
        ChildProcess endless({"sh", "-c", "yes | tr -d '\\n'"});
        endless.read_line(100);
      },
      ChildEnded);
}

TEST(ChildProcess, NamesAProgramThatIsMissing) {
  try {
    ChildProcess none({"/nowhere/program"});
    ADD_FAILURE();
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code(), std::errc::no_such_file_or_directory);
  }
}

// It neither waits for the other program nor leaves it behind.
TEST(ChildProcess, EndsWithItsObject) {
  std::string pid;
  {
    ChildProcess sleeper({"sh", "-c", "echo $$; exec sleep 1000"});
    pid = sleeper.read_line(20);
  }
  EXPECT_NE(::kill(std::stoi(pid), 0), 0);
}

}  // namespace
}  // namespace so
