// Byte-pair merging against a plain reading of the definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/character_bpe.h"

namespace so {
namespace {

using Ids = std::vector<std::int32_t>;

// Each byte is its own symbol.
Ids symbols_of(std::string_view word) {
  Ids symbols;
  for (const char c : word) symbols.push_back(static_cast<unsigned char>(c));
  return symbols;
}

// Looks for the best pair from the left, over and over.
Ids merged_by_definition(Ids ids, const std::vector<Merge>& merges) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> rank;
  for (std::size_t i = 0; i < merges.size(); ++i) rank[{merges[i].left, merges[i].right}] = i;
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
    const Bpe bpe(merges);
    for (const std::size_t length : {1u, 2u, 5u, 30u, 47u, 48u, 49u, 50u, 120u}) {
      std::string word;
      for (std::size_t i = 0; i < length; ++i) word.push_back("abcd"[random() % 4]);
      Ids ids = {-7};
      bpe.merge(symbols_of(word), scratch, ids);
      Ids expected = merged_by_definition(symbols_of(word), merges);
      merged += expected.size() < length;
      expected.insert(expected.begin(), -7);  // what was there stays
      ASSERT_EQ(ids, expected) << word;
    }
  }
  EXPECT_GT(merged, 1000);
}

// One word of 32 KB, where each merge has thousands of equals.
TEST(Bpe, MergesAVeryLongWord) {
  std::vector<Merge> merges;
  std::int32_t token = 'a';
  for (std::int32_t next = 256; next < 262; token = next++)
    merges.push_back({token, token, next});  // a^2, a^4, .. a^64
  const Bpe bpe(merges);
  Bpe::Scratch scratch;
  Ids ids;
  bpe.merge(symbols_of(std::string(64 * 500 + 3, 'a')), scratch, ids);
  Ids expected(500, 261);
  expected.insert(expected.end(), {256, 'a'});
  EXPECT_EQ(ids, expected);
}

// Cut into pieces and merged one by one, a text has the ids that it has as one word.
TEST(CharacterBpe, EqualsTheDefinitionWhereverItCuts) {
  std::mt19937 random(5);
  CharacterBpe::Scratch scratch;
  std::size_t pieces = 0;
  for (int round = 0; round < 200; ++round) {
    const std::vector<Merge> merges = random_merges(random);
    Vocabulary model;
    std::map<std::int32_t, std::string> spelling;
    for (const char c : {'a', 'b', 'c', 'd'}) spelling[static_cast<unsigned char>(c)] = c;
    for (bool grows = true; std::exchange(grows, false);) {
      for (const Merge& merge : merges) {
        if (spelling.contains(merge.result) || !spelling.contains(merge.left) || !spelling.contains(merge.right))
          continue;
        spelling[merge.result] = spelling[merge.left] + spelling[merge.right];
        grows = true;
      }
    }
    for (const auto& [id, token] : spelling) model.add(id, token);
    const std::int32_t unknown = 255;
    const CharacterBpe bpe(model, merges, {.bytes = std::nullopt, .token = unknown, .fused = round % 2 == 0});
    for (const std::size_t length : {1u, 2u, 7u, 40u, 120u}) {
      std::string word;
      Ids symbols;
      for (std::size_t i = 0; i < length; ++i) {
        const char c = "abcdé"[random() % 5];
        word += c == "é"[0] ? "é" : std::string(1, c);
        const bool known = c != "é"[0];
        if (!known && round % 2 == 0 && !symbols.empty() && symbols.back() == unknown) continue;
        symbols.push_back(known ? static_cast<unsigned char>(c) : unknown);
      }
      Ids ids;
      bpe.for_each_piece(word, [&](std::string_view piece) {
        ++pieces;
        bpe.encode_piece(piece, scratch, ids);
      });
      ASSERT_EQ(ids, merged_by_definition(symbols, merges)) << word;
    }
  }
  EXPECT_GT(pieces, 3000u);
}

// Text of 640 KB without anything to cut at, as a file without a pre-tokenizer has it.
TEST(CharacterBpe, MergesALongTextThatCannotBeCut) {
  Vocabulary model;
  model.add('a', "a");
  std::vector<Merge> merges;
  std::int32_t token = 'a';
  std::string spelling = "a";
  for (std::int32_t next = 256; next < 262; token = next++) {
    merges.push_back({token, token, next});
    model.add(next, spelling += spelling);
  }
  const CharacterBpe bpe(model, merges, {.bytes = std::nullopt, .token = 'a', .fused = false});
  CharacterBpe::Scratch scratch;
  Ids ids;
  std::size_t pieces = 0;
  bpe.for_each_piece(std::string(640'000, 'a'), [&](std::string_view piece) {
    ++pieces;
    bpe.encode_piece(piece, scratch, ids);
  });
  EXPECT_EQ(pieces, 1u);
  EXPECT_EQ(ids, Ids(640'000 / 64, 261));
}

TEST(Bpe, WithoutMergesBytesStayBytes) {
  const Bpe bpe({});
  Bpe::Scratch scratch;
  Ids ids;
  bpe.merge(symbols_of("ab\xff"), scratch, ids);
  EXPECT_EQ(ids, (Ids{'a', 'b', 255}));
}

}  // namespace
}  // namespace so
