#include "io/temporary_cache.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "support/files.h"

namespace so {
namespace {

namespace fs = std::filesystem;
using test::TemporaryDirectory;

class TemporaryCaches : public testing::Test {
 protected:
  TemporaryCaches() { ::setenv("TMPDIR", parent_.path().c_str(), 1); }
  ~TemporaryCaches() override { ::unsetenv("TMPDIR"); }
  std::ptrdiff_t left() const { return std::distance(fs::directory_iterator(parent_.path()), {}); }
  // Ends a process by `signal` while it has a cache with a file in it. What the process ended by.
  int ended_by(int signal) const {
    const pid_t child = ::fork();
    if (child == 0) {
      ::signal(signal, SIG_DFL);  // which nohup ignores
      TemporaryCache cache;
      test::write_file(cache.path() / "tokens", "x");
      test::write_file(cache.path() / "tokens.lock", "");
      ::raise(signal);
      ::_exit(99);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }
  TemporaryDirectory parent_;
};

TEST_F(TemporaryCaches, GoAtTheEnd) {
  {
    TemporaryCache cache;
    EXPECT_TRUE(cache.if_needed(parent_.path()).empty());
    EXPECT_EQ(left(), 0);
    test::write_file(cache.path() / "file", "x");
    EXPECT_EQ(static_cast<unsigned>(fs::status(cache.path()).permissions()), 0700u);
    EXPECT_EQ(left(), 1);
  }
  EXPECT_EQ(left(), 0);
}

TEST_F(TemporaryCaches, GoWhenTold) {
  TemporaryCache cache;
  test::write_file(cache.path() / "file", "x");
  cache.remove();
  EXPECT_EQ(left(), 0);
  cache.remove();
}

TEST_F(TemporaryCaches, GoWithASignal) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGXCPU, SIGPIPE}) {
    EXPECT_EQ(ended_by(signal), signal);
    EXPECT_EQ(left(), 0) << signal;
  }
}

TEST_F(TemporaryCaches, OfKilledProcessesGoWithTheNext) {
  EXPECT_EQ(ended_by(SIGKILL), SIGKILL);
  EXPECT_EQ(left(), 1);
  fs::create_directory(parent_ / "superoffload-mine");  // not of such a name
  TemporaryCache cache;
  const fs::path path = cache.path();
  EXPECT_EQ(left(), 2);
  // One of a living process stays.
  const pid_t child = ::fork();
  if (child == 0) {
    TemporaryCache own;
    ::_exit(own.path() != path && fs::exists(path) ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(fs::exists(path));
  EXPECT_TRUE(fs::exists(parent_ / "superoffload-mine"));
}

TEST_F(TemporaryCaches, SignalsAreAsBeforeAfterwards) {
  TemporaryCache cache;
  cache.path();
  cache.remove();
  struct sigaction now {};
  ::sigaction(SIGTERM, nullptr, &now);
  EXPECT_EQ(now.sa_handler, SIG_DFL);
}

}  // namespace
}  // namespace so
