// The program itself, where no model is needed: exit codes, and what goes to which stream.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>
#include <vector>

#include "base/build_facts.h"
#include "support/paths.h"
#include "support/speaking_model.h"

namespace {

struct Outcome {
  int code = -1;
  std::string output;
};

// `arguments` go through the shell, with redirections.
Outcome run(const std::string& arguments) {
  Outcome r;
  std::FILE* pipe = ::popen(("'" + so::test::binary() + "' " + arguments).c_str(), "r");
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
  EXPECT_EQ(version.output, "superoffload " SO_VERSION "\n" + so::build_text() + "\n");
  const Outcome help = run("train --help 2>&-");
  EXPECT_EQ(help.code, 0);
  EXPECT_EQ(help.output.rfind("Usage: superoffload train --model DIR", 0), 0u);
}

TEST(Program, UserErrorsAreOneLineOnStandardErrorAndExitWithTwo) {
  const Outcome error = run("train --num_epochs 3 2>&1 >/dev/null");
  EXPECT_EQ(error.code, 2);
  EXPECT_EQ(error.output, "superoffload: unknown option \"--num_epochs\"; here it is --num_train_epochs\n");
  EXPECT_EQ(run("train --num_epochs 3 2>/dev/null").output, "");
  EXPECT_EQ(run("2>/dev/null").code, 2);
  EXPECT_EQ(run("no_such_command 2>/dev/null").code, 2);
}

// Every command, in every form its result has. One whose result was lost must not look like one that succeeded.
TEST(Program, AResultThatCannotBeWrittenIsAFailure) {
  const so::test::TemporaryDirectory directory;
  const std::string made = so::test::make_speaking_model(directory.path()).string();
  const std::string fixture = so::test::fixtures() + "/models/qwen3-tied";
  const std::string model = " --model '" + made + "'", cpu = " --device cpu", config = " --config '" + made + "'" + cpu;
  const std::string data = " --data '" + fixture + "/data.jsonl' --cache_dir '" + directory.path().string() + "'";
  std::vector<std::string> commands = {"--help", "--version", "tokenize --decode 1" + model};
  for (const char* name :
       {"train", "init", "eval", "generate", "tokenize", "plan", "profile", "bench step", "bench ops", "bench load"})
    commands.push_back(std::string(name) + " --help");
  for (const std::string form : {"", " --json"}) {
    commands.push_back("tokenize --text abc" + model + form);
    commands.push_back("eval" + data + model + cpu + form);
    commands.push_back("generate --prompt abc --max_new_tokens 2" + model + cpu + form);
    commands.push_back("plan --model qwen3-4b" + form);
    commands.push_back("bench step --batch_size 1 --max_length 16 --steps 1 --warmup 0" + config + form);
    commands.push_back("bench load --rounds 1" + model + cpu + form);
  }
  // profile and bench ops take their time; nothing of theirs is different from here on.
  for (const std::string& command : commands) {
    for (const std::string output : {">/dev/full", ">&-"}) {
      if (output == ">&-" && command.find("--help") == std::string::npos) continue;  // as above, and quicker
      const Outcome o = run(command + " 2>&1 " + output);
      EXPECT_EQ(o.code, 1) << command << " " << output << ": " << o.output;
      const std::size_t at = o.output.find("superoffload: cannot write the result to standard output: ");
      EXPECT_NE(at, std::string::npos) << command << " " << output << ": " << o.output;
    }
  }
}

}  // namespace
