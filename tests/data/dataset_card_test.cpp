// Data sets of the hub whose README.md says which files are what.
#include "data/dataset_card.h"

#include <gtest/gtest.h>

#include "data/data_directory.h"
#include "data_test_util.h"
#include "support/errors.h"

namespace so {
namespace {

namespace fs = std::filesystem;

TEST(DatasetCard, PatternsAreOfPaths) {
  const std::pair<const char*, const char*> matching[] = {{"a.jsonl", "a.jsonl"},
                                                          {"data/train-*", "data/train-0.parquet"},
                                                          {"*/a-*", "en/a-1"},
                                                          {"**/a-*", "a-1"},
                                                          {"**/a-*", "x/y/a-1"},
                                                          {"data/**", "data/x/y"},
                                                          {"data/**/*.jsonl", "data/a.jsonl"},
                                                          {"data/[ab]?.jsonl", "data/a1.jsonl"}};
  for (const auto& [pattern, file] : matching)
    EXPECT_TRUE(card_pattern_matches(pattern, file)) << pattern << " " << file;
  const std::pair<const char*, const char*> other[] = {{"*", "data/a"},     {"data/*", "data/x/a"},
                                                       {"data/**", "data"}, {"*", ".hidden"},
                                                       {"a", "b"},          {"data/*", "other/a"}};
  for (const auto& [pattern, file] : other) EXPECT_FALSE(card_pattern_matches(pattern, file)) << pattern << " " << file;
}

class DatasetWithCard : public testing::Test {
 protected:
  void card(const std::string& configs) const {
    test::write_file(directory_.path / "README.md", "---\nlicense: mit\n" + configs + "---\n# Data\n");
  }
  void add(const std::vector<std::string>& names) const {
    for (const std::string& name : names) {
      fs::create_directories((directory_.path / name).parent_path());
      test::write_file(directory_.path / name, "{}\n");
    }
  }
  std::vector<std::string> files(DataUse use = DataUse::training, std::vector<fs::path>* left_out = nullptr) const {
    std::vector<std::string> names;
    for (const fs::path& file : files_of_directory(directory_.path, "--data", use, left_out))
      names.push_back(fs::relative(file, directory_.path).string());
    return names;
  }
  void expect_refused(const std::vector<std::string>& needles, DataUse use = DataUse::training) const {
    test::expect_in(test::refusal([&] { files(use); }), needles);
  }

  using Names = std::vector<std::string>;
  test::TemporaryDirectory directory_;
};

TEST_F(DatasetWithCard, TheDefaultConfigIsTaken) {
  add({"en/train-00000-of-00001.jsonl", "en/test-00000-of-00001.jsonl", "fr/train-00000-of-00001.jsonl", "raw.jsonl"});
  EXPECT_EQ(files(), Names{"raw.jsonl"}) << "by names alone";
  card(
      "configs:\n- config_name: en\n  default: true\n  data_files:\n  - split: train\n    path: en/train-*\n"
      "  - split: test\n    path: ./en/test-*\n- config_name: fr\n  data_files: fr/*\n");
  std::vector<fs::path> left_out;
  EXPECT_EQ(files(DataUse::training, &left_out), Names{"en/train-00000-of-00001.jsonl"});
  EXPECT_EQ(left_out, std::vector<fs::path>{directory_.path / "en" / "test-00000-of-00001.jsonl"});
  EXPECT_EQ(files(DataUse::evaluation), Names{"en/test-00000-of-00001.jsonl"});
  // One config alone, or one of that name, is the default too. Files without splits are for training.
  card("configs:\n- config_name: fr\n  data_files: [\"fr/**\", raw.jsonl, \"*.jsonl\"]\n");
  EXPECT_EQ(files(), (Names{"fr/train-00000-of-00001.jsonl", "raw.jsonl"}));
  card("configs:\n- config_name: fr\n  data_files: fr/*\n- config_name: default\n  data_dir: en\n");
  EXPECT_EQ(files(), Names{"en/train-00000-of-00001.jsonl"});
  card("configs:\n- config_name: fr\n  data_dir: fr\n  data_files: train-*\n");
  EXPECT_EQ(files(), Names{"fr/train-00000-of-00001.jsonl"});
  // Where nothing is said of files, names say it.
  for (const char* text :
       {"configs:\n- config_name: default\n", "dataset_info:\n  features: []\n", "configs: []\n", "\t"}) {
    card(text);
    EXPECT_EQ(files(), Names{"raw.jsonl"}) << text;
  }
  test::write_file(directory_.path / "README.md", "# No card\n---\nconfigs: {\n");
  EXPECT_EQ(files(), Names{"raw.jsonl"});
}

TEST_F(DatasetWithCard, SeveralConfigsAreRefusedByName) {
  add({"en/train-0.jsonl", "fr/train-0.jsonl", "data/a-0.jsonl", "data/b-0.jsonl"});
  card(
      "configs:\n- config_name: en\n  data_files:\n  - split: train\n    path: en/train-*\n- config_name: fr\n  data_dir: "
      "fr\n");
  const std::string at = directory_.path.string();
  expect_refused({"--data " + at, "several configs and no default: en, fr; name the files of one, as " + at + "/en"});
  card("configs:\n- config_name: a\n  data_files: data/a-*\n- config_name: b\n  data_files: data/b-*\n");
  expect_refused({"as \"" + at + "/data/a-*\""});
}

TEST_F(DatasetWithCard, SplitsAreChosenAsEver) {
  add({"data/train_sft-0.jsonl", "data/train_gen-0.jsonl", "data/test_sft-0.jsonl"});
  const std::string splits =
      "configs:\n- config_name: default\n  data_files:\n  - split: train_sft\n    path: data/train_sft-*\n  - split: "
      "train_gen\n    path: data/train_gen-*\n  - split: test_sft\n    path: data/test_sft-*\n";
  card(splits);
  expect_refused({"test_sft, train_gen, train_sft", "several of which are for training",
                  "\"" + directory_.path.string() + "/data/train_gen-*\""});
  EXPECT_EQ(files(DataUse::evaluation), Names{"data/test_sft-0.jsonl"});
  // Of the others the files may be missing.
  fs::remove(directory_.path / "data" / "train_sft-0.jsonl");
  EXPECT_EQ(files(DataUse::evaluation), Names{"data/test_sft-0.jsonl"});
}

TEST_F(DatasetWithCard, WhatCannotBeMeantIsRefused) {
  add({"a.jsonl", "b.csv", "c.parquet"});
  const std::string readme = (directory_.path / "README.md").string();
  const std::pair<std::string, std::string> cases[] = {
      {"configs: {\n", readme + ":4: "},
      {"x: \xff\nconfigs: []\n", "is not UTF-8"},
      {"configs: a.jsonl\n", "configs is no list"},
      {"configs: [a]\n", "a value stands where a mapping should"},
      {"configs:\n- data_files: {train: a.jsonl}\n", "a list or a mapping stands where a text should"},
      {"configs:\n- data_files:\n  - split: train\n", "a split has no path"},
      {"configs:\n- data_files: ../../*.jsonl\n", "\"../../*.jsonl\" leads out of the directory"},
      {"configs:\n- data_files: a/../../b\n", "leads out of the directory"},
      {"configs:\n- data_dir: ..\n", "leads out of the directory"},
      {"configs:\n- data_files: /etc/passwd\n", "is no file of the directory"},
      {"configs:\n- data_files: \"hf://datasets/a/b/c.jsonl\"\n", "is no file of the directory"},
      {"configs:\n- data_files: x-*\n", "x-*, which no file here is; is the copy whole?"},
      {"configs:\n- data_files: b.csv\n", "b.csv, which is none of .json, .jsonl, .parquet and .arrow"},
      {"configs:\n- data_files: [a.jsonl, c.parquet]\n", "files and .parquet files"}};
  for (const auto& [text, needle] : cases) {
    card(text);
    SCOPED_TRACE(text);
    expect_refused({needle});
  }
}

}  // namespace
}  // namespace so
