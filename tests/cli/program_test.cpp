// The program itself, where no model is needed: exit codes, and what goes to which stream.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>

namespace {

struct Outcome {
  int code = -1;
  std::string output;
};

// `arguments` go through the shell, with redirections.
Outcome run(const std::string& arguments) {
  Outcome r;
  std::FILE* pipe = ::popen(("'" SO_BINARY "' " + arguments).c_str(), "r");
  if (pipe == nullptr) return r;
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) r.output.append(buffer, n);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) r.code = WEXITSTATUS(status);
  return r;
}

TEST(Program, HelpAndVersionGoToStandardOutput) {
  const Outcome version = run("--version 2>&-");
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.output, "superoffload " SO_VERSION "\n");
  const Outcome help = run("train --help 2>&-");
  EXPECT_EQ(help.code, 0);
  EXPECT_EQ(help.output.rfind("Usage: superoffload train --model DIR", 0), 0u);
}

TEST(Program, UserErrorsAreOneLineOnStandardErrorAndExitWithTwo) {
  const Outcome error = run("train --learning_rate 3 2>&1 >/dev/null");
  EXPECT_EQ(error.code, 2);
  EXPECT_EQ(error.output, "superoffload: unknown option \"--learning_rate\"; here it is --lr\n");
  EXPECT_EQ(run("train --learning_rate 3 2>/dev/null").output, "");
  EXPECT_EQ(run("2>/dev/null").code, 2);
  EXPECT_EQ(run("no_such_command 2>/dev/null").code, 2);
}

TEST(Program, AFullDiskIsNotSuccess) { EXPECT_EQ(run("--help >/dev/full").code, 1); }

}  // namespace
