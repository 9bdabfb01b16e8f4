// Token caches as files: who may read them, what is listed, what is pruned.
#include "data/cache_files.h"

#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "data_test_util.h"
#include "io/cache_directory.h"

namespace so {
namespace {

namespace fs = std::filesystem;
using test::dataset_of;
using test::read_file;
using test::TemporaryDirectory;
using test::write_file;

class CacheFiles : public testing::Test {
 protected:
  // A cache of one document of `tokens` tokens that was last used so many seconds before `now_`.
  fs::path make(const std::string& name, int tokens, std::time_t age, const fs::path& data = {}) {
    const fs::path path = directory_.path / name;
    TokenCacheWriter writer(path, 1, data);
    Example example;
    example.ids.assign(static_cast<std::size_t>(tokens), 1);
    example.targets = example.ids;
    example.trained = tokens;
    writer.add(example);
    writer.finish();
    set_age(path, age);
    return path;
  }
  void set_age(const fs::path& path, std::time_t age) const {
    const timespec times[2] = {{now_ - age, 0}, {now_ - age, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW), 0);
  }
  std::vector<std::string> names(const std::vector<CacheFile>& caches) const {
    std::vector<std::string> out;
    for (const CacheFile& cache : caches) out.push_back(cache.path.filename().string());
    return out;
  }
  std::vector<std::string> chosen(const PruneRule& rule) const {
    return names(chosen_by(rule, list_caches(directory_.path), now_));
  }

  TemporaryDirectory directory_;
  std::time_t now_ = 1'700'000'000;
};

using Names = std::vector<std::string>;

TEST_F(CacheFiles, OnlyOursAreListedTheLastUsedFirst) {
  make("b.tokens", 10, 500, "/data/b.jsonl");
  const fs::path a = make("a.tokens", 1000, 100, "/data/a.jsonl");
  write_file(directory_.path / "notes.tokens", "not ours, whatever it is called");
  write_file(directory_.path / "empty.tokens", "");
  write_file(directory_.path / "a.tokens.lock", "");
  fs::copy_file(a, directory_.path / "a.copy");
  fs::create_symlink(a, directory_.path / "link.tokens");
  fs::create_directory(directory_.path / "directory.tokens");
  ASSERT_EQ(::mkfifo((directory_.path / "fifo.tokens").c_str(), 0600), 0);
  const auto caches = list_caches(directory_.path);
  ASSERT_EQ(names(caches), (Names{"a.tokens", "b.tokens"}));
  EXPECT_EQ(caches[0].info.data, "/data/a.jsonl");
  EXPECT_EQ(caches[0].bytes, fs::file_size(a));
  EXPECT_EQ(caches[0].used, now_ - 100);
  EXPECT_EQ(caches[0].info.counts.tokens, 1000);
  EXPECT_TRUE(caches[0].info.whole);
  EXPECT_TRUE(list_caches(directory_.path / "none").empty());
}

TEST_F(CacheFiles, OtherVersionsAndDamagedOnesAreListedAsSuch) {
  const fs::path a = make("a.tokens", 10, 1), b = make("b.tokens", 10, 2);
  std::string bytes = read_file(a);
  bytes[8] = 1;  // as version 1 began
  write_file(a, bytes);
  fs::resize_file(b, fs::file_size(b) - 1);
  for (const CacheFile& cache : list_caches(directory_.path)) {
    EXPECT_FALSE(cache.info.whole);
    EXPECT_EQ(cache.info.version, cache.path == a ? 1u : kTokenCacheVersion);
  }
  EXPECT_EQ(list_caches(directory_.path).size(), 2u);
}

TEST_F(CacheFiles, RulesChooseTheOldAndTheLongestUnused) {
  constexpr std::time_t day = 24 * 60 * 60;
  const std::uint64_t size = fs::file_size(make("new.tokens", 1000, day));
  make("mid.tokens", 1000, 10 * day);
  make("old.tokens", 1000, 40 * day);
  EXPECT_EQ(chosen({.all = true}), (Names{"new.tokens", "mid.tokens", "old.tokens"}));
  EXPECT_EQ(chosen({.older_than_seconds = 30 * day}), Names{"old.tokens"});
  EXPECT_EQ(chosen({.older_than_seconds = 0}), (Names{"new.tokens", "mid.tokens", "old.tokens"}));
  EXPECT_EQ(chosen({.max_bytes = 3 * size}), Names{});
  EXPECT_EQ(chosen({.max_bytes = 3 * size - 1}), Names{"old.tokens"});
  EXPECT_EQ(chosen({.max_bytes = size}), (Names{"mid.tokens", "old.tokens"}));
  EXPECT_EQ(chosen({.max_bytes = 0}), (Names{"new.tokens", "mid.tokens", "old.tokens"}));
  // A file that a process is still writing stays; one that was left a day ago does not.
  fs::rename(directory_.path / "new.tokens", directory_.path / "new.tokens.tmp-1-0");
  fs::rename(directory_.path / "old.tokens", directory_.path / "old.tokens.tmp-2-0");
  set_age(directory_.path / "new.tokens.tmp-1-0", 60);
  EXPECT_EQ(chosen({.all = true}), (Names{"mid.tokens", "old.tokens.tmp-2-0"}));
}

TEST_F(CacheFiles, RemovesTheCacheAndItsLockUnlessItIsBeingMade) {
  const fs::path a = make("a.tokens", 10, 1);
  const auto caches = list_caches(directory_.path);
  {
    const CacheLock lock(a);
    EXPECT_TRUE(lock.held());
    EXPECT_FALSE(remove_cache(caches[0]));
    EXPECT_TRUE(fs::exists(a));
  }
  EXPECT_TRUE(remove_cache(caches[0]));
  EXPECT_TRUE(fs::is_empty(directory_.path));

  // A file that has taken its place meanwhile is not ours.
  write_file(a, "another program's");
  EXPECT_FALSE(remove_cache(caches[0]));
  fs::remove(a);
  const fs::path precious = make("precious", 10, 1);
  fs::create_symlink(precious, a);
  EXPECT_FALSE(remove_cache(caches[0]));
  EXPECT_TRUE(fs::exists(precious) && fs::is_symlink(a));
}

TEST_F(CacheFiles, AreTheirOwnersAlone) {
  const auto mode_of = [](const fs::path& path) { return static_cast<unsigned>(fs::status(path).permissions()); };
  const fs::path data = directory_.path / "data.jsonl";
  write_file(data, "x");
  const mode_t old = ::umask(0);
  EXPECT_EQ(mode_of(make("a.tokens", 10, 1, data)), 0600u);
  EXPECT_FALSE(make_private_directories(directory_.path / "x" / "y"));
  EXPECT_EQ(mode_of(directory_.path / "x"), 0700u);
  EXPECT_EQ(mode_of(directory_.path / "x" / "y"), 0700u);
  ::umask(old);
  EXPECT_TRUE(make_private_directories(data / "below"));
  EXPECT_FALSE(make_private_directories(directory_.path / "x" / "y" / ""));
}

TEST_F(CacheFiles, TheLastOfTwoWritersStands) {
  const fs::path path = directory_.path / "a.tokens";
  TokenCacheWriter first(path, 1), second(path, 1);
  const Example one{.ids = {1, 2}, .targets = {2, kIgnored}, .trained = 1};
  first.add(one);
  second.add(one);
  first.finish();
  EXPECT_EQ(TokenDataset(path, 1, 100).size(), 1);
  second.finish();
  EXPECT_EQ(TokenDataset(path, 1, 100).size(), 1);
  EXPECT_EQ(names(list_caches(directory_.path)), Names{"a.tokens"});
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_.path), {}), 1) << "no temporary is left";
}

}  // namespace
}  // namespace so
