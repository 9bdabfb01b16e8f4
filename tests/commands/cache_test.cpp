// superoffload cache, and where training keeps the tokens of private data.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "support/files.h"
#include "support/paths.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

class Caches : public testing::Test {
 protected:
  Caches() { fs::copy(model_fixture("qwen3-tied") / "data.jsonl", data()); }
  TrainCommand command() const {
    TrainCommand c(model_fixture("qwen3-tied") / "model", data(), temporary_ / "out");
    return c.set("lr", "1e-3").set("batch_size", "2").set("max_length", "48").set("max_steps", "1");
  }
  fs::path data() const { return temporary_ / "data.jsonl"; }
  fs::path cache() const { return temporary_ / "cache"; }
  Outcome prune(const std::vector<std::string>& more) const {
    std::vector<std::string> words{test::binary(), "cache", "--cache_dir", cache().string()};
    words.insert(words.end(), more.begin(), more.end());
    return run(words, temporary_.path());
  }
  TemporaryDirectory temporary_;
};

// Names are other people's.
TEST_F(Caches, AreListedWithoutWhatSteersATerminal) {
  const fs::path directory = temporary_ / "a\u009b2J\u202e\x1b[2J";
  const Outcome listed = run({test::binary(), "cache", "--cache_dir", directory.string(), "--json"}, temporary_.path());
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
  EXPECT_EQ(nlohmann::json::parse(listed.out).at("directory"), directory.string());
  EXPECT_NE(listed.out.find("a\\u009b2J\\u202e\\u001b[2J"), std::string::npos) << listed.out;
}

TEST_F(Caches, AreListedAndPrunedAndNothingElseIs) {
  ASSERT_EQ(run(command().set("cache_dir", cache().string()).words(), temporary_.path()).exit_code, 0);
  write_file(cache() / "mine.tokens", "not a cache");
  write_file(cache() / "rates-1.json", "{}");
  const auto before = snapshot(cache());
  const Outcome listed = prune({});
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
  EXPECT_NE(listed.out.find(data().string()), std::string::npos) << listed.out;
  EXPECT_NE(listed.out.find(": 1 token caches, "), std::string::npos) << listed.out;
  const auto j = nlohmann::json::parse(prune({"--json"}).out);
  ASSERT_EQ(j.at("caches").size(), 1u);
  EXPECT_EQ(j["caches"][0]["data"], data().string());
  EXPECT_EQ(j["caches"][0]["whole"], true);

  expect_refusal(prune({"--prune"}), {"--older_than", "--max_size", "--all"});
  expect_refusal(prune({"--prune", "--all", "--max_size", "5"}), {"exclude each other"});
  expect_refusal(prune({"--all"}), {"--prune"});
  EXPECT_EQ(prune({"--prune", "--older_than", "1"}).exit_code, 0);
  EXPECT_EQ(prune({"--prune", "--max_size", "100000000"}).exit_code, 0);
  EXPECT_TRUE(snapshot(cache()) == before);
  const Outcome pruned = prune({"--prune", "--max_size", "0"});
  EXPECT_EQ(pruned.exit_code, 0);
  EXPECT_NE(pruned.out.find("1 of 1 token caches removed"), std::string::npos) << pruned.out;
  std::set<std::string> left;
  for (const auto& [name, bytes] : snapshot(cache())) left.insert(name);
  EXPECT_EQ(left, (std::set<std::string>{"mine.tokens", "rates-1.json"}));
}

TEST_F(Caches, OfPrivateDataArePrivate) {
  fs::permissions(data(), fs::perms::owner_read | fs::perms::owner_write);
  ASSERT_EQ(run(command().set("cache_dir", cache().string()).words(), temporary_.path()).exit_code, 0);
  EXPECT_EQ(static_cast<unsigned>(fs::status(cache()).permissions()), 0700u);
  for (const auto& entry : fs::directory_iterator(cache())) {
    if (entry.path().extension() != ".tokens") continue;
    EXPECT_EQ(static_cast<unsigned>(entry.status().permissions()), 0600u) << entry.path();
  }
}

// The model's directory is what people publish: tokens of their data have no place in it.
TEST_F(Caches, AreNeverPutBesideTheModel) {
  write_file(temporary_ / "file", "");
  std::vector<std::string> words{"/usr/bin/env", "XDG_CACHE_HOME=" + (temporary_ / "file").string(),
                                 "TMPDIR=" + temporary_.path().string()};
  for (const std::string& word : command().words()) words.push_back(word);
  const Outcome o = run(words, temporary_.path());
  EXPECT_EQ(o.exit_code, 0) << o.err;
  std::set<std::string> left;
  for (const auto& entry : fs::directory_iterator(temporary_.path())) left.insert(entry.path().filename().string());
  EXPECT_EQ(left, (std::set<std::string>{"data.jsonl", "file", "out", "stderr.txt", "stdout.txt"}))
      << "the temporary cache has gone";
  for (const auto& entry : fs::recursive_directory_iterator(temporary_ / "out"))
    EXPECT_EQ(entry.path().string().find("tokens"), std::string::npos) << entry.path();
  EXPECT_FALSE(fs::exists(temporary_ / "out" / "cache"));
}

TEST_F(Caches, ADamagedOneIsMadeAgain) {
  const TrainCommand train = command().set("cache_dir", cache().string());
  ASSERT_EQ(run(train.words(), temporary_.path()).exit_code, 0);
  fs::path file;
  for (const auto& entry : fs::directory_iterator(cache()))
    if (entry.path().extension() == ".tokens") file = entry.path();
  const std::string good = read_file(file), weights = read_file(temporary_ / "out" / "model.safetensors");
  for (const std::size_t at : {std::size_t{600}, good.size() - 5}) {  // a token; an entry of the table
    std::string bad = good;
    bad[at] ^= 1;
    write_file(file, bad);
    const Outcome o = run(TrainCommand(train).flag("overwrite_output_dir").words(), temporary_.path());
    EXPECT_EQ(o.exit_code, 0) << o.err;
    EXPECT_NE(o.err.find("damaged"), std::string::npos) << o.err;
    EXPECT_NE(o.err.find("making it again"), std::string::npos) << o.err;
    EXPECT_TRUE(read_file(file) == good);
    EXPECT_TRUE(read_file(temporary_ / "out" / "model.safetensors") == weights);
  }
}

}  // namespace
}  // namespace so::test
