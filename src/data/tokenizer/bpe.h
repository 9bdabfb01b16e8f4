// Byte-pair encoding of one word: Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword
// Units", ACL 2016, on bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "data/tokenizer/vocabulary.h"

namespace so {

struct Merge {
  std::int32_t left;
  std::int32_t right;
  std::int32_t result;
};

// Immutable; encode_word may be called from several threads, each with its own scratch.
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

  // `byte_ids`: each byte's token. `merges`: the first has the highest priority; no pair may occur twice.
  Bpe(const std::array<std::int32_t, 256>& byte_ids, const std::vector<Merge>& merges);

  // Appends the ids of the word's bytes: of all adjacent pairs the one of lowest rank (leftmost of equals) is merged,
  // again and again. O(n log n) in the word's length.
  void encode_word(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  struct Slot {
    std::int32_t left = -1;  // -1: free
    std::int32_t right = -1;
    std::uint32_t rank = 0;
    std::int32_t result = 0;
  };
  const Slot* find(std::int32_t left, std::int32_t right) const;
  void encode_short(std::string_view word, std::vector<std::int32_t>& ids) const;
  void encode_long(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const;

  std::array<std::int32_t, 256> byte_ids_;
  std::vector<Slot> slots_;  // open addressing, at most half full
};

}  // namespace so
