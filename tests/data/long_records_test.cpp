// Records of a million tokens: they load, are cached, and share rows with others as short ones do.
#include <gtest/gtest.h>

#include <numeric>

#include "data/batches.h"
#include "data/dataset.h"
#include "data_test_util.h"

namespace so {
namespace {

using test::ByteEncoder;
using test::TemporaryDirectory;
using test::write_file;

constexpr std::int64_t million = std::int64_t{1} << 20;

class LongRecords : public ::testing::Test {
 protected:
  TokenDataset open() { return open_dataset(options_, encoder_, pool_); }

  TemporaryDirectory directory_;
  ThreadPool pool_{"test", {0, 1}, false};
  ByteEncoder encoder_;
  DatasetOptions options_{.file = directory_.path / "data.jsonl",
                          .example = {.max_length = million},
                          .cache_directory = directory_.path / "cache",
                          .fallback_directory = {}};
};

// Token i of a record of ids.
std::int32_t id_at(std::int64_t i) { return static_cast<std::int32_t>((i * 7 + i / 251) % 250); }

TEST_F(LongRecords, OfTokenIds) {
  std::string line = R"({"input_ids":[)";
  line.reserve(5 << 20);
  for (std::int64_t i = 0; i < million; ++i) line += (i > 0 ? "," : "") + std::to_string(id_at(i));
  write_file(options_.file, "{\"input_ids\":[1,2,3]}\n" + line + "]}\n{\"input_ids\":[4,5]}\n");
  for (int use = 0; use < 2; ++use) {  // made, and from the cache
    const TokenDataset data = open();
    ASSERT_EQ(data.size(), 3);
    EXPECT_EQ(data.counts().longest, million);
    EXPECT_EQ(data.counts().truncated, 0);
    const DocumentView view = data.document(1);
    ASSERT_EQ(std::ssize(view.ids), million);
    for (std::int64_t i = 0; i < million; ++i) {
      const auto at = static_cast<std::size_t>(i);
      ASSERT_EQ(view.ids[at], id_at(i)) << i;
      ASSERT_EQ(view.targets[at], i + 1 < million ? id_at(i + 1) : kIgnored) << i;
    }
  }
}

TEST_F(LongRecords, OfTextAreCutAndPacked) {
  std::string text;
  for (std::int64_t i = 0; i < million + 1000; ++i) text += static_cast<char>('a' + i % 23);
  const std::string most = text.substr(0, static_cast<std::size_t>(million - 10));
  write_file(options_.file,
             "{\"text\":\"" + text + "\"}\n{\"text\":\"short\"}\n{\"text\":\"" + most + "\"}\n{\"text\":\"x\"}\n");
  const TokenDataset data = open();
  ASSERT_EQ(data.size(), 4);
  EXPECT_EQ(data.counts().truncated, 1);
  EXPECT_EQ(data.length(0), million);
  EXPECT_EQ(data.length(2), million - 10 + 1);  // with its end token

  BatchOptions options;
  options.batch_size = 1;
  options.max_length = million;
  options.packing = true;
  options.shuffle = false;
  BatchIterator iterator(data, options);
  std::vector<MicroBatch> rows(2);
  std::int64_t tokens = 0;
  for (MicroBatch& row : rows) {
    iterator.next_step();
    iterator.micro_batch(0, row);
    EXPECT_LE(std::ssize(row.ids), million);
    for (std::size_t d = 1; d < row.cu_seqlens.size(); ++d) {
      const auto first = static_cast<std::size_t>(row.cu_seqlens[d - 1]),
                 last = static_cast<std::size_t>(row.cu_seqlens[d] - 1);
      EXPECT_EQ(row.positions[first], 0);
      EXPECT_EQ(row.positions[last], static_cast<std::int32_t>(last - first));
    }
    tokens += std::ssize(row.ids);
  }
  EXPECT_EQ(tokens, data.counts().tokens) << "two rows hold the two long records and the short ones";
}

}  // namespace
}  // namespace so
