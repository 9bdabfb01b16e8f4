#include "io/run_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/child_process.h"
#include "support/errors.h"
#include "support/files.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;
using io_test::run_in_child;

class RunLocks : public testing::Test {
 protected:
  fs::path file() const { return directory_ / run_lock_file; }
  std::string tried_by_another() const {
    return run_in_child([&] {
      const RunLock lock(directory_.path());
      return std::string("taken");
    });
  }
  TemporaryDirectory directory_;
};

TEST_F(RunLocks, AnotherProcessIsRefusedByHostAndNumber) {
  {
    const RunLock lock(directory_.path());
    const std::string me = "process " + std::to_string(::getpid());
    expect_in(tried_by_another(), {"threw: ", directory_.path().string(), "in use", me + " on ", "--output_dir"});
    expect_in(refusal([&] { RunLock again(directory_.path()); }), {me});
    expect_in(refusal([&] { RunLock::require_free(directory_.path()); }), {me});
    EXPECT_TRUE(RunLock::held(directory_.path()));
    EXPECT_TRUE(fs::exists(file())) << "a refusal takes nothing";
  }
  EXPECT_FALSE(RunLock::held(directory_.path()));
  EXPECT_FALSE(fs::exists(file()));
  EXPECT_EQ(tried_by_another(), "taken");
  EXPECT_NO_THROW(RunLock::require_free(directory_.path()));
  EXPECT_TRUE(snapshot(directory_.path()).empty()) << "asking leaves nothing";
  EXPECT_NO_THROW(RunLock::require_free(directory_ / "absent"));
}

// A process that holds the lock, says so through a pipe, and is killed.
TEST_F(RunLocks, AKilledHolderStandsInNobodysWay) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      const RunLock lock(directory_.path());
      if (::write(ends[1], "h", 1) == 1)
        for (;;) ::pause();
    } catch (...) {
    }
    ::_exit(1);
  }
  ::close(ends[1]);
  char byte = 0;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);
  ::close(ends[0]);
  expect_in(refusal([&] { RunLock lock(directory_.path()); }), {"process " + std::to_string(child)});
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(file())) << "what it left";
  EXPECT_NO_THROW(RunLock::require_free(directory_.path()));
  EXPECT_EQ(tried_by_another(), "taken");
}

// A file of the same name that replaced the locked one is another's.
TEST_F(RunLocks, TheFileOfAnotherIsNotRemoved) {
  {
    const RunLock lock(directory_.path());
    fs::remove(file());
    write_file(file(), "another's");
  }
  EXPECT_EQ(read_file(file()), "another's");
}

TEST_F(RunLocks, NeitherLinksNorFifosAreOpened) {
  write_file(directory_ / "precious", "mine");
  fs::create_symlink(directory_ / "precious", file());
  expect_in(refusal([&] { RunLock lock(directory_.path()); }), {file().string()});
  EXPECT_EQ(read_file(directory_ / "precious"), "mine");
  fs::remove(file());
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  expect_in(refusal([&] { RunLock lock(directory_.path()); }), {file().string(), "not a regular file"});
}

// Where the file system has no locks, a run goes on without.
TEST_F(RunLocks, WithoutLocksARunGoesOn) {
  const std::string got = run_in_child([&] {
    if (!io_test::deny_system_call(SYS_flock, ENOLCK)) return std::string("skip");
    const RunLock first(directory_.path()), second(directory_.path());
    RunLock::require_free(directory_.path());
    return std::string("went on");
  });
  if (got == "skip") GTEST_SKIP() << "seccomp filters are not allowed here";
  EXPECT_EQ(got, "went on");
}

}  // namespace
}  // namespace so::test
