#include "data/document_mix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "data/batches.h"
#include "data/data_files.h"
#include "data_test_util.h"

namespace so {
namespace {

namespace fs = std::filesystem;

using test::dataset_of;
using test::error_of;
using test::TemporaryDirectory;
using test::write_file;

class DocumentMixes : public ::testing::Test {
 protected:
  // Caches of so many documents; the lengths of each tell whose they are: 10, 11, ... and 100, 101, ...
  JoinedDocuments joined(int first, int second) {
    std::vector<TokenDataset> caches;
    for (const auto& [count, begin] : {std::pair(first, 10), std::pair(second, 100)}) {
      std::vector<int> lengths;
      for (int i = 0; i < count; ++i) lengths.push_back(begin + i);
      caches.push_back(dataset_of(directory_.path / std::to_string(caches.size()), lengths));
    }
    return JoinedDocuments(std::move(caches));
  }
  static std::vector<std::int64_t> lengths_of(const Documents& documents) {
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < documents.size(); ++i) all.push_back(documents.length(i));
    return all;
  }

  TemporaryDirectory directory_;
};

TEST_F(DocumentMixes, FilesFollowEachOther) {
  const JoinedDocuments all = joined(3, 2);
  EXPECT_EQ(lengths_of(all), (std::vector<std::int64_t>{10, 11, 12, 100, 101}));
  EXPECT_EQ(all.counts().documents, 5);
  EXPECT_EQ(all.counts().tokens, 234);
  EXPECT_EQ(all.counts().longest, 101);
  std::int64_t trained = 0;
  for (std::int64_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(std::ssize(all.document(i).ids), all.length(i));
    trained += all.trained_tokens(i);
  }
  EXPECT_EQ(all.counts().trained_tokens, trained);
  EXPECT_THROW(all.length(5), Bug);
  EXPECT_THROW(all.length(-1), Bug);
}

// So that runs of one file go on from checkpoints of versions that knew no others.
TEST_F(DocumentMixes, OneFileKeepsItsKey) {
  std::vector<TokenDataset> one;
  one.push_back(dataset_of(directory_.path / "one", {3, 4}));
  const std::uint64_t key = one.front().key();
  const JoinedDocuments all(std::move(one));
  EXPECT_EQ(all.key(), key);
  EXPECT_EQ(mix_documents(all, {}).training.key(), key);
  EXPECT_NE(mix_documents(all, {.validation = 1}).training.key(), key);
}

TEST_F(DocumentMixes, WhatIsHeldOutIsNotTrainedOn) {
  const JoinedDocuments all = joined(60, 40);
  for (const auto& [asked, held] : {std::pair(0.1, 10), std::pair(0.101, 11), std::pair(7.0, 7), std::pair(99.0, 99)}) {
    const MixedDocuments mixed = mix_documents(all, {.validation = asked, .seed = 5});
    const auto training = lengths_of(mixed.training), validation = lengths_of(*mixed.validation);
    EXPECT_EQ(std::ssize(validation), held);
    EXPECT_TRUE(std::is_sorted(validation.begin(), validation.end())) << "in the order of the files";
    std::set<std::int64_t> both(training.begin(), training.end());
    both.insert(validation.begin(), validation.end());
    EXPECT_EQ(both.size(), 100u);
    EXPECT_EQ(training.size() + validation.size(), 100u);
    EXPECT_EQ(lengths_of(*mix_documents(all, {.validation = asked, .seed = 5}).validation), validation);
  }
  const auto by_seed = [&](std::uint64_t seed) { return mix_documents(all, {.validation = 20, .seed = seed}); };
  EXPECT_NE(lengths_of(*by_seed(1).validation), lengths_of(*by_seed(2).validation));
  EXPECT_NE(by_seed(1).training.key(), by_seed(2).training.key());
  EXPECT_NE(by_seed(1).training.key(), by_seed(1).validation->key());
  for (const double all_of_them : {100.0, 1e6, 0.999})
    EXPECT_NE(error_of([&] { mix_documents(all, {.validation = all_of_them}); }).find("nothing to train on"),
              std::string::npos)
        << all_of_them;
}

TEST_F(DocumentMixes, WeightsRepeatAndDraw) {
  const JoinedDocuments all = joined(6, 8);
  const DocumentMix mix{.weights = {2, 0.5}, .files = {1, 1}, .validation = std::nullopt, .seed = 3};
  const auto lengths = lengths_of(mix_documents(all, mix).training);
  ASSERT_EQ(lengths.size(), 16u);
  std::map<std::int64_t, int> times;
  for (const std::int64_t length : lengths) ++times[length];
  for (int i = 0; i < 6; ++i) EXPECT_EQ(times[10 + i], 2);
  EXPECT_EQ(times.size(), 10u) << "four of the second file's, once each";
  EXPECT_EQ(lengths_of(mix_documents(all, mix).training), lengths);
  // Both files in one part.
  EXPECT_EQ(mix_documents(all, {.weights = {1.5}, .files = {2}}).training.size(), 21);
  // What is held out is not there for weights.
  const MixedDocuments mixed = mix_documents(all, {.weights = {3, 1}, .files = {1, 1}, .validation = 5, .seed = 1});
  const auto held = lengths_of(*mixed.validation);
  for (const std::int64_t length : lengths_of(mixed.training))
    EXPECT_EQ(std::count(held.begin(), held.end(), length), 0) << length;
  const auto of_first = std::count_if(held.begin(), held.end(), [](std::int64_t n) { return n < 100; });
  EXPECT_EQ(mixed.training.size(), 3 * (6 - of_first) + 8 - (5 - of_first));
  EXPECT_NE(error_of([&] {
              mix_documents(all, {.weights = {1, 0.01}, .files = {1, 1}});
            }).find("leaves none of the 8"),
            std::string::npos);
}

TEST(DataWeights, AreOneForEachPart) {
  EXPECT_EQ(parse_weights("2,0.5", 2, "--data_weights"), (std::vector<double>{2, 0.5}));
  for (const char* wrong : {"", "2", "2,", "2,x", "2,0", "2,-1", "2,nan", "2,inf", "2,1001", "2,0.5,1", "2, 1"})
    EXPECT_NE(error_of([&] { parse_weights(wrong, 2, "--data_weights"); }).find("--data_weights"), std::string::npos)
        << wrong;
}

// A batch of several files is made as of one.
TEST_F(DocumentMixes, BatchesReadAcrossFiles) {
  const JoinedDocuments all = joined(3, 3);
  BatchIterator iterator(all, {.batch_size = 4, .shuffle = false});
  iterator.next_step();
  MicroBatch batch;
  iterator.micro_batch(0, batch);
  EXPECT_EQ(batch.cu_seqlens, (std::vector<std::int32_t>{0, 10, 21, 33, 133}));
}

class DataFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(at("set/inner"));
    for (const char* name : {"b.jsonl", "a.jsonl", "a,b.jsonl", "set/2.json", "set/1.jsonl", "set/.hidden.jsonl",
                             "set/notes.txt", "set/inner/3.jsonl"})
      write_file(at(name), "{}");
    fs::create_directory(at("empty"));
  }
  std::string at(const std::string& name) const { return (directory_.path / name).string(); }
  std::string names(const std::string& text) const {
    std::string all;
    for (const DataPart& part : data_files(text, "--data", DataUse::training)) {
      for (const fs::path& file : part) all += fs::relative(file, directory_.path).string() + " ";
      all += "| ";
    }
    return all;
  }

  TemporaryDirectory directory_;
};

TEST_F(DataFiles, AreFilesDirectoriesAndPatterns) {
  EXPECT_EQ(names(at("b.jsonl")), "b.jsonl | ");
  EXPECT_EQ(names(at("b.jsonl") + "," + at("a.jsonl")), "b.jsonl | a.jsonl | ");
  EXPECT_EQ(names(at("set")), "set/1.jsonl set/2.json | ");
  EXPECT_EQ(names(at("[ab].jsonl") + "," + at("set")), "a.jsonl b.jsonl | set/1.jsonl set/2.json | ");
  EXPECT_EQ(names(at("*.jsonl")), "a,b.jsonl a.jsonl b.jsonl | ");
  EXPECT_EQ(names(at("a,b.jsonl")), "a,b.jsonl | ") << "a comma in the name of a file that is there";
  EXPECT_EQ(names(at("missing.jsonl")), "missing.jsonl | ") << "who opens it says so";
  EXPECT_EQ(all_files(data_files(at("set") + "," + at("a.jsonl"), "--data", DataUse::training)).size(), 3u);
}

TEST_F(DataFiles, ThatAreNoneOrTwiceAreRefused) {
  const auto refused = [&](const std::string& text, const std::string& why) {
    const std::string error = error_of([&] { data_files(text, "--data", DataUse::training); });
    EXPECT_NE(error.find("--data"), std::string::npos) << text << ": " << error;
    EXPECT_NE(error.find(why), std::string::npos) << text << ": " << error;
  };
  refused(at("empty"), "no .json, .jsonl, .parquet or .arrow file");
  refused(at("*.parquet"), "no file has such a name");
  refused(at("a.jsonl") + ",," + at("b.jsonl"), "missing beside a comma");
  refused(at("a.jsonl") + ",", "missing beside a comma");
  refused(at("a.jsonl") + "," + at("*.jsonl"), "twice");
  fs::create_symlink(at("a.jsonl"), at("set/link.jsonl"));
  refused(at("set") + "," + at("a.jsonl"), "twice");
}

}  // namespace
}  // namespace so
