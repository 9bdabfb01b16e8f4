#include "io/own_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/hash.h"
#include "support/errors.h"
#include "support/files.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

class OwnFilesTest : public testing::Test {
 protected:
  OwnFilesTest() { fs::create_directories(directory()); }
  fs::path directory() const { return temporary_ / "out"; }
  fs::path record() const { return directory() / own_files_record; }
  // Every call refuses, and nothing changes.
  void expect_refused(const std::vector<std::string>& parts) const {
    const auto before = snapshot(temporary_.path());
    expect_in(refusal([&] { own_.read(); }), parts);
    expect_in(refusal([&] { own_.add({"b"}); }), parts);
    expect_in(refusal([&] { own_.remove({"a"}); }), parts);
    EXPECT_TRUE(snapshot(temporary_.path()) == before);
  }

  TemporaryDirectory temporary_;
  const OwnFiles own_{directory()};
};

TEST_F(OwnFilesTest, NamesAreAddedAndRead) {
  EXPECT_FALSE(own_.read());
  own_.add({});
  EXPECT_EQ(own_.read(), FileNames());
  own_.add({"metrics.jsonl", "runs/x"});
  own_.add({"checkpoint-3/model.safetensors", "metrics.jsonl"});
  EXPECT_EQ(OwnFiles(directory()).read(), (FileNames{"checkpoint-3/model.safetensors", "metrics.jsonl", "runs/x"}));
  EXPECT_FALSE(OwnFiles(temporary_ / "absent").read());
}

TEST_F(OwnFilesTest, NamesThatAreNotUtf8BelongToNobody) {
  own_.add({"LICENSE\xff"});
  ASSERT_TRUE(own_.read());
  EXPECT_FALSE(own_.read()->contains("LICENSE\xff"));
}

TEST_F(OwnFilesTest, ARecordOfBracketsIsDamaged) {
  for (const std::string& text :
       {std::string(3'000'000, '['), std::string(3'000'000, '[') + std::string(3'000'000, ']')}) {
    write_file(record(), text);
    expect_refused({"is damaged"});
    write_file(record(), R"({"superoffload": 1, "checksum": "0", "files": )" + text + "}");
    expect_refused({"is damaged"});
  }
}

TEST_F(OwnFilesTest, ThreadsTakeTurns) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i) own_.add({std::to_string(t) + "-" + std::to_string(i)});
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(own_.read()->size(), 20u);
}

TEST_F(OwnFilesTest, OnlyNamedFilesGo) {
  const FileNames names{"metrics.jsonl", "model.safetensors", "checkpoint-3/a", "checkpoint-3/b", "runs/x", "gone"};
  for (const char* name : {"checkpoint-3", "runs", "mine"}) fs::create_directories(directory() / name);
  for (const char* name : {"metrics.jsonl", "model.safetensors", "checkpoint-3/a", "checkpoint-3/b", "runs/x", "runs/y",
                           "mine/a", "model-q4.safetensors"})
    write_file(directory() / name, name);
  own_.add(names);
  own_.add({"kept"});
  EXPECT_EQ(own_.remove(names), 5u);
  fs::remove(directory() / own_files_record);
  EXPECT_EQ(snapshot(directory()), (std::map<std::string, std::string>{{"mine", "(directory)"},
                                                                       {"mine/a", "mine/a"},
                                                                       {"model-q4.safetensors", "model-q4.safetensors"},
                                                                       {"runs", "(directory)"},
                                                                       {"runs/y", "runs/y"}}));
}

TEST_F(OwnFilesTest, WhatWasRemovedIsForgotten) {
  own_.add({"a", "b", "c/d"});
  EXPECT_EQ(own_.remove({"a", "c/d"}), 0u) << "none of them is there";
  EXPECT_EQ(own_.read(), FileNames{"b"});
}

// Neither a file nor a directory that a link leads to, nor a directory in a file's place.
TEST_F(OwnFilesTest, LinksAndDirectoriesStay) {
  fs::create_directories(temporary_ / "elsewhere");
  write_file(temporary_ / "elsewhere" / "a", "precious");
  fs::create_directory_symlink(temporary_ / "elsewhere", directory() / "checkpoint-3");
  fs::create_symlink(temporary_ / "elsewhere" / "a", directory() / "model.safetensors");
  fs::create_directories(directory() / "metrics.jsonl" / "deep");
  const FileNames names{"checkpoint-3/a", "model.safetensors", "metrics.jsonl"};
  own_.add(names);
  EXPECT_EQ(own_.remove(names), 0u);
  EXPECT_EQ(read_file(temporary_ / "elsewhere" / "a"), "precious");
  for (const char* name : {"checkpoint-3", "model.safetensors", "metrics.jsonl"})
    EXPECT_TRUE(fs::exists(fs::symlink_status(directory() / name))) << name;
}

TEST_F(OwnFilesTest, ADamagedRecordIsRefused) {
  own_.add({"a", "runs/x"});
  const std::string whole = read_file(record());
  std::string flipped = whole;
  flipped.at(whole.find("runs")) ^= 1;
  const std::string texts[] = {"",
                               "{",
                               "[]",
                               "null",
                               "{}",
                               whole.substr(0, whole.size() / 2),
                               flipped,
                               R"({"superoffload_files": 1, "files": ["a"]})",
                               R"({"superoffload_files": 1, "files": ["b"], "checksum": 7})"};
  for (const std::string& text : texts) {
    write_file(record(), text);
    expect_refused({record().string(), "damaged"});
  }
}

TEST_F(OwnFilesTest, ARecordOfThingsOutsideIsRefused) {
  write_file(temporary_ / "precious", "x");
  const OwnFiles other(temporary_ / "other");
  fs::create_directories(temporary_ / "other");
  for (const std::string name :
       {"../precious", "/etc/passwd", "a/../../precious", "..", ".", "", "a/", "/a", "a//b", "a/b/c/d/e"}) {
    EXPECT_THROW(other.add({name}), Bug) << name;
    EXPECT_THROW(other.remove({name}), Bug) << name;
  }
  EXPECT_TRUE(fs::exists(temporary_ / "precious"));
  // A record made by hand, with the checksum that belongs to it.
  const nlohmann::json files{"../precious"};
  write_file(record(), nlohmann::json{{"superoffload_files", 1},
                                      {"files", files},
                                      {"checksum", fmt::format("{:016x}", hash_text(files.dump()))}}
                           .dump());
  expect_refused({record().string(), "'../precious'", "outside the directory"});
}

TEST_F(OwnFilesTest, ARecordThatIsNoFileIsRefused) {
  write_file(temporary_ / "elsewhere", "{}");
  fs::create_symlink(temporary_ / "elsewhere", record());
  expect_refused({record().string(), "not a regular file"});
  EXPECT_TRUE(fs::is_symlink(record()));
  fs::remove(record());
  ASSERT_EQ(::mkfifo(record().c_str(), 0600), 0);
  const auto message = refusal([&] { own_.read(); });
  expect_in(message, {record().string(), "not a regular file"});
}

TEST_F(OwnFilesTest, FilesInListsAllButDirectories) {
  write_file(directory() / "a", "");
  fs::create_directories(directory() / "b" / "c");
  write_file(directory() / "b" / "c" / "d", "");
  fs::create_directory_symlink("b", directory() / "e");
  EXPECT_EQ(files_in(directory(), "p/"), (FileNames{"p/a", "p/b/c/d", "p/e"}));
  EXPECT_EQ(files_in(directory(), {}, 0), (FileNames{"a", "e"}));
  EXPECT_TRUE(is_plain_file(directory(), "b/c/d"));
  EXPECT_FALSE(is_plain_file(directory(), "e/c/d")) << "by way of a link";
  EXPECT_FALSE(is_plain_file(directory(), "b"));
  EXPECT_FALSE(is_plain_file(directory(), "x"));
}

TEST_F(OwnFilesTest, FoldersInCheckpointsGoToo) {
  fs::create_directories(directory() / "checkpoint-3" / "templates");
  write_file(directory() / "checkpoint-3" / "templates" / "x", "");
  EXPECT_EQ(own_.remove({"checkpoint-3/templates/x"}), 1u);
  EXPECT_FALSE(fs::exists(directory() / "checkpoint-3"));
}

}  // namespace
}  // namespace so::test
