#include "io/atomic_directory.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file.h"
#include "support/child_process.h"
#include "support/io.h"

namespace so {
namespace {

using io_test::expect_error;
using io_test::names_in;
using io_test::read_file;
using io_test::TemporaryDirectory;
using io_test::write_file;

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

// A directory of several files that all carry the same text: whole if and only if they agree.
void fill(const fs::path& directory, const std::string& text) {
  fs::create_directories(directory / "sub");
  for (const char* name : {"a", "b", "sub/c", "d"}) write_file(directory / name, text);
}

bool is_whole(const fs::path& directory, std::string* text) {
  *text = read_file(directory / "a");
  for (const char* name : {"b", "sub/c", "d"}) {
    if (read_file(directory / name) != *text) return false;
  }
  return true;
}

void publish(const fs::path& final_path, const std::string& text, IfExists if_exists) {
  AtomicDirectory directory(final_path, if_exists);
  fill(directory.path(), text);
  directory.commit();
}

bool is_ours(std::string_view name) { return name.starts_with("out"); }

TEST(AtomicDirectory, AppearsAtCommit) {
  TemporaryDirectory parent;
  const auto final_path = parent / "deep/er/out";
  {
    AtomicDirectory directory(final_path);
    fill(directory.path(), "one");
    EXPECT_EQ(directory.final_path(), final_path);
    EXPECT_EQ(directory.path().filename().string(), "out.tmp-" + std::to_string(::getpid()));
    EXPECT_FALSE(fs::exists(final_path));
    directory.commit();
    expect_error<Bug>([&] { directory.commit(); }, {"committed twice"});
  }
  std::string text;
  EXPECT_TRUE(is_whole(final_path, &text));
  EXPECT_EQ(text, "one");
  EXPECT_EQ(names_in(parent / "deep/er"), Names{"out"});
}

TEST(AtomicDirectory, LeavesNothingWithoutCommit) {
  TemporaryDirectory parent;
  {
    AtomicDirectory directory(parent / "out");
    fill(directory.path(), "one");
  }
  EXPECT_EQ(names_in(parent.path()), Names{});
}

TEST(AtomicDirectory, RefusesToReplaceUnlessAsked) {
  TemporaryDirectory parent;
  publish(parent / "out", "old", IfExists::refuse);
  expect_error([&] { AtomicDirectory{parent / "out"}; }, {"out exists already"});
  expect_error([&] { AtomicDirectory{parent / "out/"}; }, {"out exists already"});
  publish(parent / "out/", "new", IfExists::replace);
  EXPECT_EQ(read_file(parent / "out/a"), "new");
  EXPECT_EQ(names_in(parent.path()), Names{"out"});
  write_file(parent / "file", "x");
  expect_error([&] { AtomicDirectory(parent / "file", IfExists::replace); }, {"file exists and is not a directory"});
}

TEST(AtomicDirectory, RefusesWhatAppearedMeanwhile) {
  TemporaryDirectory parent;
  AtomicDirectory directory(parent / "out");
  fill(directory.path(), "mine");
  fs::create_directory(parent / "out");  // empty: a plain rename() would replace it
  expect_error([&] { directory.commit(); }, {"out exists already"});
}

TEST(AtomicDirectory, NeitherFollowsNorReplacesALink) {
  TemporaryDirectory parent;
  publish(parent / "real", "old", IfExists::refuse);
  fs::create_directory_symlink("real", parent / "link");
  expect_error([&] { publish(parent / "link", "new", IfExists::replace); }, {"link is a link, which is neither"});
  expect_error([&] { remove_directory_atomically(parent / "link"); }, {"link is a link, which is neither"});
  {
    AtomicDirectory directory(parent / "late", IfExists::replace);
    fill(directory.path(), "new");
    fs::create_directory_symlink("real", parent / "late");
    expect_error([&] { directory.commit(); }, {"late is a link, which is neither"});
  }
  EXPECT_EQ(read_file(parent / "real/a"), "old");
  EXPECT_EQ(names_in(parent.path()), (Names{"late", "link", "real"}));
}

TEST(AtomicDirectory, AppearsInItsParentWhereverThatIsMoved) {
  TemporaryDirectory directory;
  publish(directory / "parent/out", "old", IfExists::refuse);
  AtomicDirectory made(directory / "parent/out", IfExists::replace);
  fill(made.path(), "begun");
  fs::rename(directory / "parent", directory / "moved");
  fs::create_directory(directory / "parent");
  fill(made.path(), "new");
  made.commit();
  EXPECT_EQ(read_file(directory / "moved/out/a"), "new");
  EXPECT_EQ(names_in(directory / "moved"), Names{"out"});
  EXPECT_EQ(names_in(directory / "parent"), Names{});
}

TEST(AtomicDirectory, BelongsToOneWriter) {
  TemporaryDirectory parent;
  AtomicDirectory directory(parent / "out");
  expect_error([&] { AtomicDirectory{parent / "out"}; }, {"is in use", "being written already"});
  fill(directory.path(), "one");
  EXPECT_EQ(remove_stale_temporaries(parent.path(), is_ours), 0);  // ours is alive
  directory.commit();
  EXPECT_EQ(read_file(parent / "out/a"), "one");
}

TEST(AtomicDirectory, SaysWhyItCannotBe) {
  TemporaryDirectory parent;
  write_file(parent / "file", "x");
  expect_error([&] { AtomicDirectory{parent / "file/out"}; }, {"cannot create directory", "file"});
  expect_error([&] { AtomicDirectory{""}; }, {"empty"});
}

void expect_whole_after_kills(const std::function<bool()>& confine) {
  TemporaryDirectory parent;
  const auto final_path = parent / "out";
  publish(final_path, "first", IfExists::refuse);
  bool changed = false;
  // Twenty kills at growing delays; if a slow machine got nothing done in that time, longer ones.
  for (int round = 0; round < 20 || (!changed && round < 60); ++round) {
    SCOPED_TRACE(round);
    ASSERT_TRUE(io_test::kill_child_after(round < 20 ? 200 + 477 * round : 50'000 * (round - 19), [&] {
      if (confine && !confine()) return;
      for (int generation = 0;; ++generation) {
        publish(final_path, std::string(1000, static_cast<char>('a' + generation % 26)), IfExists::replace);
      }
    }));
    std::string text;
    if (!confine) {
      ASSERT_TRUE(is_whole(final_path, &text));  // needs no repair
    }
    remove_stale_temporaries(parent.path(), is_ours);
    EXPECT_EQ(names_in(parent.path()), Names{"out"});
    ASSERT_TRUE(is_whole(final_path, &text));
    changed = changed || text != "first";
  }
  EXPECT_TRUE(changed);  // else no child got as far as a commit
}

TEST(AtomicDirectory, SurvivesBeingKilled) { expect_whole_after_kills({}); }

// As on NFS: names cannot be exchanged, directories cannot be locked.
TEST(AtomicDirectory, SurvivesBeingKilledWithoutExchangeOrLocks) {
  const auto confine = [] {
    return io_test::deny_system_call(SYS_renameat2, EINVAL, 4) && io_test::deny_system_call(SYS_flock, EBADF);
  };
  if (io_test::run_in_child([&] { return std::string(confine() ? "yes" : "no"); }) != "yes")
    GTEST_SKIP() << "no seccomp";
  expect_whole_after_kills(confine);
}

TEST(AtomicDirectory, WorksWithoutExchangeOrLocks) {
  TemporaryDirectory parent;
  const std::string result = io_test::run_in_child([&]() -> std::string {
    if (!io_test::deny_system_call(SYS_renameat2, EINVAL, 4) || !io_test::deny_system_call(SYS_flock, EBADF))
      return "no filter";
    publish(parent / "out", "old", IfExists::refuse);
    publish(parent / "out", "new", IfExists::replace);
    AtomicDirectory directory(parent / "other");
    fs::create_directory(parent / "other");
    directory.commit();
    return "committed onto an existing directory";
  });
  if (result == "no filter") GTEST_SKIP() << "no seccomp";
  EXPECT_EQ(result.find("threw: " + (parent / "other").string() + " exists already"), 0u) << result;
  EXPECT_EQ(read_file(parent / "out/a"), "new");
  EXPECT_FALSE(fs::exists(parent / ("out.old-" + std::to_string(::getpid()))));
}

TEST(StaleTemporaries, GoWhenTheirProcessIsDead) {
  TemporaryDirectory parent;
  const std::string dead = std::to_string(io_test::dead_process());
  const std::string own = std::to_string(::getpid());
  for (const std::string& name :
       {"out.tmp-" + dead, "out.tmp-" + own, "out-5.tmp-" + dead, "other.tmp-" + dead, std::string("out.tmp-"),
        std::string("out.tmp-x"), std::string("out.tmp-12x"), std::string("out.tmp--5"), std::string("out")}) {
    fill(parent / name, "x");
  }
  write_file(parent / ("out-file.tmp-" + dead), "x");
  EXPECT_EQ(remove_stale_temporaries(parent.path(), is_ours), 3);
  EXPECT_EQ(names_in(parent.path()), (Names{"other.tmp-" + dead, "out", "out-file.tmp-" + dead, "out.tmp-",
                                            "out.tmp--5", "out.tmp-12x", "out.tmp-x"}));
  EXPECT_EQ(remove_stale_temporaries(parent / "absent", is_ours), 0);
}

// Where locks do not exist the process number decides.
TEST(StaleTemporaries, StayWithoutLocksWhileTheirProcessLives) {
  TemporaryDirectory parent;
  fill(parent / "out.tmp-1", "x");  // process 1 is always alive
  fill(parent / ("out.tmp-" + std::to_string(io_test::dead_process())), "x");
  const std::string result = io_test::run_in_child([&]() -> std::string {
    if (!io_test::deny_system_call(SYS_flock, EBADF)) return "no filter";
    fill(parent / ("out.tmp-" + std::to_string(::getpid())), "x");
    return std::to_string(remove_stale_temporaries(parent.path(), is_ours));
  });
  if (result == "no filter") GTEST_SKIP() << "no seccomp";
  EXPECT_EQ(result, "2");
  EXPECT_EQ(names_in(parent.path()), Names{"out.tmp-1"});
}

TEST(StaleTemporaries, GiveAReplacedDirectoryItsNameBack) {
  TemporaryDirectory parent;
  const std::string dead = std::to_string(io_test::dead_process());
  fill(parent / ("out.old-" + dead), "old");
  EXPECT_EQ(remove_stale_temporaries(parent.path(), is_ours), 0);
  EXPECT_EQ(read_file(parent / "out/a"), "old");
  fill(parent / ("out.old-" + dead), "older");
  EXPECT_EQ(remove_stale_temporaries(parent.path(), is_ours), 1);
  EXPECT_EQ(read_file(parent / "out/a"), "old");
  EXPECT_EQ(names_in(parent.path()), Names{"out"});
}

TEST(RemoveDirectory, LeavesNothingThatLooksWholeWhenKilled) {
  TemporaryDirectory parent;
  for (int round = 0; round < 8; ++round) {
    const auto path = parent / "out";
    fs::create_directory(path);
    for (int i = 0; i < 60; ++i) write_file(path / std::to_string(i), "x");
    ASSERT_TRUE(io_test::kill_child_after(50 + 120 * round, [&] {
      remove_directory_atomically(path);
      for (;;) ::pause();
    }));
    if (fs::exists(path)) {
      EXPECT_EQ(names_in(path).size(), 60u);
    }
    remove_stale_temporaries(parent.path(), is_ours);
    fs::remove_all(path);
    EXPECT_EQ(names_in(parent.path()), Names{});
  }
}

TEST(RemoveDirectory, ReplacesALeftoverAndNamesAFailure) {
  TemporaryDirectory parent;
  fill(parent / "out", "x");
  fill(parent / ("out.tmp-" + std::to_string(::getpid())), "left by a process of our number");
  remove_directory_atomically(parent / "out");
  EXPECT_EQ(names_in(parent.path()), Names{});
  expect_error([&] { remove_directory_atomically(parent / "out"); }, {"cannot remove", "out", "No such file"});
}

}  // namespace
}  // namespace so
