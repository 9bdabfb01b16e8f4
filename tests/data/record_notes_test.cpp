// What the log says of a file's records, also where its token cache is an earlier run's.
#include "data/record_notes.h"

#include <gtest/gtest.h>

#include "data/dataset.h"
#include "data_test_util.h"

namespace so {
namespace {

class NotesOfAFile : public ::testing::Test {
 protected:
  TokenDataset open(const std::string& content, std::int64_t max_length = 6) {
    test::write_file(options_.file, content);
    options_.example.max_length = max_length;
    return open_dataset(options_, encoder_, pool_);
  }

  test::TemporaryDirectory directory_;
  ThreadPool pool_{"test", {0, 1, 2}, false};
  test::ByteEncoder encoder_;
  DatasetOptions options_{.file = directory_.path / "data.jsonl",
                          .example = {.max_length = 6},
                          .cache_directory = directory_.path / "cache",
                          .fallback_directory = {}};
};

TEST_F(NotesOfAFile, AreKeptInItsTokenCache) {
  std::string content;
  for (int i = 0; i < 5000; ++i)
    content += i % 2 == 0 ? R"({"text":"a","id":1,"strange":2})"
                            "\n"
                          : R"({"text":"b","id":1,"none":null})"
                            "\n";
  const RecordNotes made = open(content).notes();
  EXPECT_EQ(made.count(NoteKind::harmless_key, "id"), 5000);
  EXPECT_EQ(made.count(NoteKind::unknown_key, "strange"), 2500);
  EXPECT_EQ(made.count(NoteKind::unknown_key, "none"), 0);
  EXPECT_FALSE(DatasetSource(options_, encoder_, pool_).makes_cache());
  EXPECT_EQ(open(content).notes(), made);
}

TEST_F(NotesOfAFile, ManyNamesDependOnNoThread) {
  std::string content;
  for (int i = 0; i < 9000; ++i) content += R"({"text":"a","k)" + std::to_string(i * 7919 % 9000) + "\":1}\n";
  const RecordNotes several = open(content).notes();
  std::filesystem::remove_all(options_.cache_directory);
  ThreadPool one("test", {}, false);
  EXPECT_EQ(open_dataset(options_, encoder_, one).notes(), several);
  EXPECT_GT(several.count(NoteKind::unknown_key), 8000);
}

TEST_F(NotesOfAFile, RowsThatOthersPackedAreTheirDocuments) {
  const std::string content = R"({"input_ids":[1,2,3,4,5,6],"position_ids":[0,1,2,0,1,2]})"
                              "\n"
                              R"({"input_ids":[1,2,3,4,5,6],"attention_mask":[1,1,2,2,3,3],"loss_mask":[1,1,0,0,1,1]})"
                              "\n"
                              R"({"input_ids":[7,8]})"
                              "\n";
  const TokenDataset dataset = open(content, 2);
  ASSERT_EQ(dataset.size(), 5);
  EXPECT_EQ(dataset.counts().records, 6);
  EXPECT_EQ(dataset.counts().dropped, 1);
  EXPECT_EQ(dataset.counts().truncated, 2);
  EXPECT_EQ(dataset.notes().count(NoteKind::packed_row), 2);
  for (std::int64_t d = 0; d < dataset.size(); ++d) EXPECT_EQ(dataset.document(d).targets.back(), kIgnored);
  EXPECT_EQ(dataset.document(1).ids.front(), 4);
  EXPECT_EQ(dataset.document(3).ids.front(), 5);
  std::filesystem::remove_all(options_.cache_directory);
  DatasetSource source(options_, encoder_, pool_);
  EXPECT_GE(source.most_cache_bytes(), source.count_cache_bytes());
}

}  // namespace
}  // namespace so
