// Byte-pair encoding of one word: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword
// Units", ACL 2016. The symbols to begin with are tokens that stand for bytes or for characters.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/tokenizer/vocabulary.h"

namespace so {

struct Merge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t result;
};

// Immutable; merge() may be called from several threads, each with its own scratch.
class Bpe {
 public:
  struct Scratch {
    struct Symbol {
      std::int32_t id;
      std::int32_t previous;
      std::int32_t next;
    };
    struct Candidate {
      std::uint32_t rank;
      std::int32_t at;
      std::int32_t left;
      std::int32_t right;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // The first merge has the highest priority; no pair may occur twice.
  explicit Bpe(const std::vector<Merge>& merges);

  // Appends what becomes of a word's symbols: of all adjacent pairs the one of lowest rank (leftmost of equals) is
  // merged, again and again. O(n log n) in their number.
  void merge(std::span<const std::int32_t> symbols, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  struct Slot {
    std::int32_t left = -1;  // -1: free
    std::int32_t right = -1;
    std::uint32_t rank = 0;
    std::int32_t result = 0;
  };
  const Slot* find(std::int32_t left, std::int32_t right) const;
  void merge_few(std::span<const std::int32_t> symbols, std::vector<std::int32_t>& ids) const;
  void merge_many(std::span<const std::int32_t> symbols, Scratch& scratch, std::vector<std::int32_t>& ids) const;

  std::vector<Slot> slots_;  // open addressing, at most half full
};

}  // namespace so
