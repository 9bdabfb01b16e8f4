// Limits of the shell that are too tight: each command ends with one line that says so, and a documented exit code.
#include <gtest/gtest.h>

#include "support/paths.h"
#include "support/refusal.h"
#include "support/sanitized.h"

namespace so::test {
namespace {

class Limited : public testing::Test {
 protected:
  void SetUp() override {
    if (sanitized) GTEST_SKIP() << "a sanitizer needs more memory than the limits leave";
  }
  Outcome run_limited(const std::vector<std::string>& words, const Resource& resource,
                      std::optional<unsigned> user = {}) const {
    std::vector<std::string> command{test::binary()};
    command.insert(command.end(), words.begin(), words.end());
    return run(command, temporary_.path(), {.resources = {resource}, .user = user});
  }
  // Either it did its work, or it says in one line why not.
  static void expect_sentence(const Outcome& o, const std::string& what) {
    EXPECT_EQ(o.signal, 0) << what << ": " << o.err;
    if (o.exit_code == 0) return;
    EXPECT_TRUE(o.exit_code == 1 || o.exit_code == 2) << what << ": " << o.exit_code << o.err;
    const auto lines = lines_of(o.err);
    ASSERT_FALSE(lines.empty()) << what;
    EXPECT_TRUE(lines.back().starts_with("superoffload: ")) << what << ": " << o.err;
    EXPECT_EQ(lines.back().find("internal error"), std::string::npos) << what << ": " << o.err;
  }
  const std::vector<std::string> bench_ = {
      "bench",        "step", "--config",     test::fixtures() + "/models/qwen3-tied/model/config.json",
      "--device",     "cpu",  "--batch_size", "1",
      "--max_length", "16",   "--steps",      "1",
      "--warmup",     "0"};
  TemporaryDirectory temporary_;
};

// oneDNN 2.6 compiles its kernels when they are first needed, and crashes where there is no memory for them. The sweep
// begins where the program's first line is reached: with CUDA's libraries that takes several hundred megabytes, and
// cuBLAS crashes, or throws, before it where a little is missing.
TEST_F(Limited, AddressSpace) {
  const auto begins = [&](std::uint64_t megabytes) {
    const Outcome o = run_limited({"--version"}, {RLIMIT_AS, megabytes << 20});
    return o.exit_code == 0 || o.err.find("superoffload: out of memory") != std::string::npos;
  };
  std::uint64_t least = 60;
  while (least < 4096 && !begins(least)) least += 8;
  ASSERT_LT(least, 4096u);
  bool refused = false, named = false, worked = false;
  for (std::uint64_t megabytes = least; megabytes <= least + 200; megabytes += 8) {
    const Outcome o = run_limited(bench_, {RLIMIT_AS, megabytes << 20});
    expect_sentence(o, std::to_string(megabytes) + " MB");
    refused |= o.exit_code == 1;
    named |= o.err.find("superoffload: out of memory (ulimit -v is ") != std::string::npos;
    worked |= o.exit_code == 0;
  }
  EXPECT_TRUE(refused);  // else the limits are not those that the test is about
  EXPECT_TRUE(named);
  EXPECT_TRUE(worked);
}

TEST_F(Limited, Stack) {
  const Outcome o = run_limited(bench_, {RLIMIT_STACK, 64 << 10});
  EXPECT_EQ(o.signal, 0);
  EXPECT_EQ(o.exit_code, 1);
  EXPECT_EQ(o.err, "superoffload: the stack may have only 65.5 kB (ulimit -s); 262.1 kB are needed\n");
  EXPECT_EQ(run_limited(bench_, {RLIMIT_STACK, 256 << 10}).exit_code, 0);
}

TEST_F(Limited, Threads) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become a user whose threads are counted from none";
  std::filesystem::permissions(temporary_.path(), std::filesystem::perms::all);
  const unsigned nobody = 65'534;
  const Outcome first = run_limited({"--version"}, {RLIMIT_NPROC, 100}, nobody);
  if (first.exit_code != 0) GTEST_SKIP() << "others may not run the program where it is";
  for (std::uint64_t threads = 2; threads <= 8; threads += 2)
    expect_sentence(run_limited(bench_, {RLIMIT_NPROC, threads}, nobody), std::to_string(threads) + " threads");
  const Outcome o = run_limited(bench_, {RLIMIT_NPROC, 2}, nobody);
  EXPECT_EQ(o.exit_code, 1);
  EXPECT_NE(o.err.find("threads; raise `ulimit -u`"), std::string::npos) << o.err;
}

TEST_F(Limited, OpenFiles) {
  const Outcome o = run_limited(bench_, {RLIMIT_NOFILE, 8});
  expect_sentence(o, "8 files");
  const Outcome plan = run_limited({"plan", "--model", test::fixtures() + "/models/qwen3-tied/model", "--hardware",
                                    "h200", "--batch_size", "1", "--max_length", "64"},
                                   {RLIMIT_NOFILE, 8});
  expect_sentence(plan, "8 files");
}

}  // namespace
}  // namespace so::test
