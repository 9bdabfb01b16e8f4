#include "data/token_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>

#include "base/hash.h"
#include "data_test_util.h"

namespace so {
namespace {

using test::dataset_of;
using test::Ids;
using test::read_file;
using test::TemporaryDirectory;
using test::write_file;

constexpr std::size_t kHeaderBytes = 4096;

class TokenCache : public ::testing::Test {
 protected:
  TemporaryDirectory directory_;
  std::filesystem::path path_ = directory_.path / "cache";

  std::string open_error(std::uint64_t key = 1) {
    return test::error_of([&] { TokenDataset(path_, key, 1 << 20); });
  }
};

TEST_F(TokenCache, GivesBackWhatWasWritten) {
  TokenCacheWriter writer(path_, 7);
  writer.add({.ids = {1, 2, 3}, .targets = {kIgnored, 3, kIgnored}, .trained = 1, .truncated = true});
  writer.add({.ids = {4, 5}, .targets = {kIgnored, kIgnored}, .trained = 0, .truncated = false});
  writer.add({.ids = {6, 7}, .targets = {9, kIgnored}, .trained = 1, .truncated = false});
  RecordNotes notes;
  notes.note(NoteKind::unknown_key, "strange");
  notes.end_record();
  writer.finish(notes);
  const TokenDataset dataset(path_, 7, 10);
  EXPECT_EQ(dataset.notes(), notes);
  EXPECT_EQ(dataset.key(), 7u);
  EXPECT_EQ(
      dataset.counts(),
      (DatasetCounts{
          .records = 3, .documents = 2, .truncated = 1, .dropped = 1, .tokens = 5, .trained_tokens = 2, .longest = 3}));
  ASSERT_EQ(dataset.size(), 2);
  EXPECT_EQ(dataset.length(0), 3);
  EXPECT_EQ(dataset.length(1), 2);
  EXPECT_EQ(dataset.trained_tokens(1), 1);
  const DocumentView first = dataset.document(0), second = dataset.document(1);
  EXPECT_EQ(Ids(first.ids.begin(), first.ids.end()), (Ids{1, 2, 3}));
  EXPECT_EQ(Ids(first.targets.begin(), first.targets.end()), (Ids{kIgnored, 3, kIgnored}));
  EXPECT_EQ(Ids(second.ids.begin(), second.ids.end()), (Ids{6, 7}));
  EXPECT_EQ(Ids(second.targets.begin(), second.targets.end()), (Ids{9, kIgnored}));
  EXPECT_THROW(dataset.document(2), Bug);
  EXPECT_THROW(dataset.length(-1), Bug);
}

TEST_F(TokenCache, StaysUsableWhenMoved) {
  TokenDataset first = dataset_of(path_, {3, 4});
  const TokenDataset second = std::move(first);
  EXPECT_EQ(second.document(1).ids[3], 1003);
}

TEST_F(TokenCache, HoldsMoreThanItsBuffer) {
  std::vector<int> lengths(3000, 500);  // 12 MB
  const TokenDataset dataset = dataset_of(path_, lengths);
  ASSERT_EQ(dataset.size(), 3000);
  EXPECT_EQ(dataset.counts().tokens, 1500000);
  for (const std::int64_t d : {0, 1500, 2999}) EXPECT_EQ(dataset.document(d).ids[499], 1000 * d + 499);
}

TEST_F(TokenCache, LeavesNothingBehindWithoutFinish) {
  {
    TokenCacheWriter writer(path_, 1);
    writer.add({.ids = {1, 2}, .targets = {2, kIgnored}, .trained = 1});
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path));
}

// Every single bit counts: whichever is flipped, opening or reading the documents fails.
// The header's notes are thousands of bytes that are alike.
std::size_t next_place(std::size_t place) { return place + (place > 600 && place + 200 < kHeaderBytes ? 50 : 1); }

TEST_F(TokenCache, NoticesEveryFlippedBit) {
  dataset_of(path_, {2, 3});
  const std::string good = read_file(path_);
  for (std::size_t byte = 0; byte < good.size(); byte = next_place(byte)) {
    std::string bad = good;
    bad[byte] = static_cast<char>(bad[byte] ^ (1 << (byte % 8)));
    write_file(path_, bad);
    const std::string error = test::error_of([&] {
      const TokenDataset dataset(path_, 1, 1 << 20);
      for (std::int64_t d = 0; d < dataset.size(); ++d) dataset.document(d);
    });
    EXPECT_NE(error, "") << "byte " << byte;
  }
}

TEST_F(TokenCache, NoticesEveryTruncationAndExcess) {
  dataset_of(path_, {2, 3});
  const std::string good = read_file(path_);
  for (std::size_t size = 0; size < good.size(); size = next_place(size)) {
    write_file(path_, good.substr(0, size));
    EXPECT_NE(open_error(), "") << "cut to " << size;
  }
  write_file(path_, good + '\0');
  EXPECT_NE(open_error(), "");
  write_file(path_, good);
  EXPECT_EQ(open_error(), "");
}

// A header with a right checksum and absurd sizes: no arithmetic on them may overflow.
TEST_F(TokenCache, RefusesAbsurdSizes) {
  dataset_of(path_, {2, 3});
  const std::string good = read_file(path_);
  constexpr std::size_t documents_at = 32, tokens_at = 56;  // after magic, version, size, key and records
  for (const std::size_t at : {documents_at, tokens_at}) {
    for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 60,
                                      std::uint64_t{1} << 61, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
      std::string bad = good;
      std::memcpy(bad.data() + at, &value, 8);
      const std::uint64_t checksum = xxh3(std::as_bytes(std::span(bad)).first(kHeaderBytes - 8));
      std::memcpy(bad.data() + kHeaderBytes - 8, &checksum, 8);
      write_file(path_, bad);
      EXPECT_NE(open_error().find("is damaged"), std::string::npos) << at << " " << value << open_error();
    }
  }
}

TEST_F(TokenCache, RefusesAnotherKeyAndOtherFiles) {
  dataset_of(path_, {2, 3});
  EXPECT_NE(open_error(2).find("other data, tokenizer or options"), std::string::npos);
  write_file(path_, std::string(1000, 'x'));
  EXPECT_NE(open_error().find("no token cache"), std::string::npos);
}

// Files with right checksums that hold what no writer puts there.
TEST_F(TokenCache, RefusesIdsOfNoToken) {
  const Ids good{1, 2, 3};
  for (const std::int32_t bad : {10, 1 << 30, -1, -99, -101, std::numeric_limits<std::int32_t>::min()})
    for (const bool in_ids : {true, false}) {
      TokenCacheWriter writer(path_, 1);
      writer.add({.ids = good, .targets = {2, 3, kIgnored}, .trained = 2});
      writer.add({.ids = {1, in_ids ? bad : 2, 3}, .targets = {2, in_ids ? 3 : bad, kIgnored}, .trained = 2});
      writer.finish();
      const std::string error = test::error_of([&] { TokenDataset(path_, 1, 10); });
      EXPECT_NE(error.find("it has ids of no token, the vocabulary has 10 tokens"), std::string::npos) << bad << error;
    }
  TokenCacheWriter writer(path_, 1);
  writer.add({.ids = {1, kIgnored, 3}, .targets = {2, 3, kIgnored}, .trained = 2});
  writer.add({.ids = good, .targets = {2, 3, kIgnored}, .trained = 3});
  writer.finish();
  const TokenDataset dataset(path_, 1, 10);
  EXPECT_NE(test::error_of([&] { dataset.document(0); }).find("it has ids of no token"), std::string::npos);
  EXPECT_NE(test::error_of([&] { dataset.document(1); }).find("another number of targets"), std::string::npos);
}

TEST_F(TokenCache, RefusesCountsThatAreNotItsDocuments) {
  dataset_of(path_, {2, 3});
  const std::string good = read_file(path_);
  // After magic, version, size and key: records, documents, truncated, dropped, tokens, trained, longest, special.
  for (const std::size_t at : {24, 40, 48, 64, 72, 80})
    for (const std::int64_t value : {std::int64_t{-1}, std::int64_t{-1} << 62, std::int64_t{1} << 62}) {
      if (at == 80 && value > 0) continue;  // any number of special tokens may have stood in the text
      std::string bad = good;
      std::memcpy(bad.data() + at, &value, 8);
      const std::uint64_t checksum = xxh3(std::as_bytes(std::span(bad)).first(kHeaderBytes - 8));
      std::memcpy(bad.data() + kHeaderBytes - 8, &checksum, 8);
      write_file(path_, bad);
      EXPECT_NE(open_error().find("is not that of its documents"), std::string::npos) << at << open_error();
    }
  for (const std::int32_t trained : {0, -1, 3}) {
    TokenCacheWriter writer(path_, 1);
    writer.add({.ids = {1, 2}, .targets = {2, kIgnored}, .trained = 1});
    writer.finish();
    std::string bad = read_file(path_);
    const std::size_t table = bad.size() - sizeof(TokenCacheEntry);
    std::memcpy(bad.data() + table + 8, &trained, 4);
    const std::uint64_t of_table = xxh3(std::as_bytes(std::span(bad)).subspan(table));
    std::memcpy(bad.data() + 88, &of_table, 8);
    const std::uint64_t checksum = xxh3(std::as_bytes(std::span(bad)).first(kHeaderBytes - 8));
    std::memcpy(bad.data() + kHeaderBytes - 8, &checksum, 8);
    write_file(path_, bad);
    EXPECT_NE(open_error().find("its number of trained tokens"), std::string::npos) << trained << open_error();
  }
}

TEST_F(TokenCache, TrustsWhatThisUserAloneCanWrite) {
  dataset_of(path_, {2, 3});
  for (const unsigned mode : {0620u, 0602u, 0666u}) {
    std::filesystem::permissions(path_, static_cast<std::filesystem::perms>(mode));
    EXPECT_NE(open_error().find("is not trusted: others may write to it"), std::string::npos) << open_error();
  }
  std::filesystem::permissions(path_, static_cast<std::filesystem::perms>(0644));
  EXPECT_EQ(open_error(), "");
  std::filesystem::rename(path_, directory_.path / "other");
  std::filesystem::create_symlink("other", path_);
  EXPECT_NE(open_error().find("is not trusted: it is a link"), std::string::npos) << open_error();
  std::filesystem::remove(path_);
  if (::geteuid() != 0) return;  // only root gives files away
  dataset_of(path_, {2, 3});
  ASSERT_EQ(::chown(path_.c_str(), 12345, 12345), 0);
  EXPECT_NE(open_error().find("is not trusted: it belongs to user 12345"), std::string::npos) << open_error();
}

TEST(Hash, DependsOnEveryByteTheLengthAndTheSeed) {
  const std::string text(100, 'a');
  std::vector<std::uint64_t> hashes;
  for (std::size_t size = 0; size <= text.size(); ++size) {
    hashes.push_back(hash_text(text.substr(0, size)));
    hashes.push_back(hash_text(std::string(size + 1, '\0')));
    hashes.push_back(hash_text(text, size + 1));
    if (size == text.size()) break;
    std::string other = text;
    other[size] = 'b';
    hashes.push_back(hash_text(other));
  }
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::adjacent_find(hashes.begin(), hashes.end()), hashes.end());
}

// Names of caches, and the data keys in checkpoints, are made of these values.
TEST(Hash, IsPinned) {
  EXPECT_EQ(hash_text(""), hash_bytes({}));
  EXPECT_EQ(mix_bits(0x9e3779b97f4a7c15u), 0xe220a8397b1dcdafu);  // splitmix64's published first output for seed 0
}

TEST(Hash, OfLargeInputsDoesNotDependOnThePool) {
  std::vector<std::byte> bytes((std::size_t{5} << 20) + 17);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  ThreadPool one("test", {}, false), three("test", {0, 1, 2}, false);
  const std::uint64_t hash = hash_large(bytes, one);
  EXPECT_EQ(hash_large(bytes, three), hash);
  for (const std::size_t at : {std::size_t{0}, std::size_t{3} << 20, bytes.size() - 1}) {
    bytes[at] ^= std::byte{1};
    EXPECT_NE(hash_large(bytes, three), hash);
    bytes[at] ^= std::byte{1};
  }
  // Exchanged pieces are other content.
  std::swap_ranges(bytes.begin(), bytes.begin() + (1 << 20), bytes.begin() + (1 << 20));
  EXPECT_NE(hash_large(bytes, three), hash);
}

}  // namespace
}  // namespace so
