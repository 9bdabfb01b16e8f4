// Byte-pair merging against a plain reading of the definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <random>

#include "data/tokenizer/bpe.h"

namespace so {
namespace {

using Ids = std::vector<std::int32_t>;

std::array<std::int32_t, 256> identity() {
  std::array<std::int32_t, 256> ids;
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// Looks for the best pair from the left, over and over.
Ids merged_by_definition(std::string_view word, const std::vector<Merge>& merges) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> rank;
  for (std::size_t i = 0; i < merges.size(); ++i) rank[{merges[i].left, merges[i].right}] = i;
  Ids ids;
  for (const char c : word) ids.push_back(static_cast<unsigned char>(c));
  while (true) {
    std::size_t best = merges.size();
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = rank.find({ids[i], ids[i + 1]});
      if (found != rank.end() && found->second < best) {
        best = found->second;
        at = i;
      }
    }
    if (best == merges.size()) return ids;
    ids[at] = merges[best].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

// Merges over the letters a..d in random order, so that a merge's parts may have a later rank than itself.
std::vector<Merge> random_merges(std::mt19937& random) {
  std::vector<std::string> tokens = {"a", "b", "c", "d"};
  std::map<std::string, std::int32_t> id;
  for (const std::string& token : tokens) id[token] = static_cast<unsigned char>(token[0]);
  std::vector<Merge> merges;
  std::map<std::pair<std::string, std::string>, bool> seen;
  for (int i = 0; i < 60; ++i) {
    const std::string left = tokens[random() % tokens.size()];
    const std::string right = tokens[random() % tokens.size()];
    if (left.size() + right.size() > 9 || !seen.emplace(std::pair(left, right), true).second) continue;
    const auto [entry, added] = id.emplace(left + right, static_cast<std::int32_t>(256 + id.size()));
    if (added) tokens.push_back(left + right);
    merges.push_back({id[left], id[right], entry->second});
  }
  std::shuffle(merges.begin(), merges.end(), random);
  return merges;
}

TEST(Bpe, EqualsTheDefinitionForShortAndLongWords) {
  std::mt19937 random(3);
  Bpe::Scratch scratch;
  int merged = 0;
  for (int round = 0; round < 200; ++round) {
    const std::vector<Merge> merges = random_merges(random);
    const Bpe bpe(identity(), merges);
    for (const std::size_t length : {1u, 2u, 5u, 30u, 47u, 48u, 49u, 50u, 120u}) {
      std::string word;
      for (std::size_t i = 0; i < length; ++i) word.push_back("abcd"[random() % 4]);
      Ids ids = {-7};
      bpe.encode_word(word, scratch, ids);
      Ids expected = merged_by_definition(word, merges);
      merged += expected.size() < length;
      expected.insert(expected.begin(), -7);  // what was there stays
      ASSERT_EQ(ids, expected) << word;
    }
  }
  EXPECT_GT(merged, 1000);
}

// Quadratic merging would take minutes for each of these, under sanitizers hours.
TEST(Bpe, LongWordsTakeNoQuadraticTime) {
  std::vector<Merge> merges;
  std::int32_t token = 'a';
  for (std::int32_t next = 256; next < 262; token = next++)
    merges.push_back({token, token, next});  // a^2, a^4, .. a^64
  const Bpe bpe(identity(), merges);
  Bpe::Scratch scratch;
  Ids ids;
  bpe.encode_word(std::string(64 * 4000 + 3, 'a'), scratch, ids);
  Ids expected(4000, 261);
  expected.insert(expected.end(), {256, 'a'});
  EXPECT_EQ(ids, expected);
}

TEST(Bpe, WithoutMergesBytesStayBytes) {
  const Bpe bpe(identity(), {});
  Bpe::Scratch scratch;
  Ids ids;
  bpe.encode_word("ab\xff", scratch, ids);
  EXPECT_EQ(ids, (Ids{'a', 'b', 255}));
}

}  // namespace
}  // namespace so
