// BPE on characters with byte fallback, as in the tokenizer.json of SentencePiece models (Llama 2, Mistral, Phi-3,
// Gemma): the model's word is a whole text, since these files have no pre-tokenizer that cuts it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/utf8.h"
#include "data/tokenizer/vocabulary.h"

namespace so {

// Says which tokens stand for a character that is none itself.
struct UnknownCharacters {
  std::optional<std::array<std::int32_t, 256>> bytes;  // with byte fallback: the tokens "<0x00>" to "<0xFF>", -1: none
  std::optional<std::int32_t> token;                   // "unk_token", where a byte has none
  bool fused = false;                                  // several in a row are one
};

// Immutable; several threads may use it at once, each with its own scratch.
class CharacterBpe {
 public:
  struct Scratch {
    Bpe::Scratch bpe;
    std::vector<std::int32_t> symbols;
  };

  CharacterBpe(const Vocabulary& model, const std::vector<Merge>& merges, const UnknownCharacters& unknown);

  // Calls `piece` for consecutive parts of `word` (valid UTF-8) whose ids, put together, are the word's. A word is cut
  // between two characters that are the last and the first of no merge's two parts. No merge can ever cross that place,
  // and merges on its two sides do not affect each other. Real vocabularies cut nearly everywhere before a space's
  // character, so that pieces are about as long as words.
  template <class Piece>
  void for_each_piece(std::string_view word, Piece&& piece) const {
    std::size_t begin = 0;
    std::uint32_t before = 0;
    for (std::size_t at = 0; at < word.size();) {
      const CodePoint c = code_point_at(word, at);
      if (at != begin && can_cut(before, c.value)) {
        piece(word.substr(begin, at - begin));
        begin = at;
      }
      before = c.value;
      at += c.length;
    }
    if (begin < word.size()) piece(word.substr(begin));
  }

  // Appends the ids of one piece.
  void encode_piece(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const;

  // The token of a piece that is one character; -1 if it has none, or if it is more than one.
  std::int32_t single(std::string_view piece) const {
    const CodePoint c = code_point_at(piece, 0);
    return c.length == piece.size() ? token_of(c.value) : -1;
  }

 private:
  static constexpr std::uint64_t free_slot = ~std::uint64_t{0};

  std::int32_t token_of(std::uint32_t character) const {
    const std::int32_t page = page_of_[character >> 8];
    return page < 0 ? -1 : tokens_[static_cast<std::size_t>(page) << 8 | (character & 255)];
  }
  // Unknown characters in a row belong together where they may become one token.
  bool can_cut(std::uint32_t left, std::uint32_t right) const {
    if (!cuts_ || joins(left, right)) return false;
    return !unknown_in_a_row_matter_ || token_of(left) >= 0 || token_of(right) >= 0;
  }
  bool joins(std::uint32_t left, std::uint32_t right) const {
    if ((left | right) < 128) return ascii_joins_[left << 1 | right >> 6] >> (right & 63) & 1;
    const std::uint64_t key = static_cast<std::uint64_t>(left) << 32 | right;
    for (std::size_t slot = slot_of(key); joins_[slot] != free_slot; slot = (slot + 1) & (joins_.size() - 1)) {
      if (joins_[slot] == key) return true;
    }
    return false;
  }
  std::size_t slot_of(std::uint64_t key) const {
    return (key ^ key >> 29) * 0x9E3779B97F4A7C15u >> 20 & (joins_.size() - 1);
  }
  void find_joins(const Vocabulary& model, const std::vector<Merge>& merges);
  void add_token(std::uint32_t character, std::int32_t id);

  Bpe bpe_;
  UnknownCharacters unknown_;
  std::array<std::int32_t, 0x1100> page_of_;  // of 256 characters; -1: none of them is a token
  std::vector<std::int32_t> tokens_;          // of the pages' characters; -1: none
  bool cuts_ = true;
  bool unknown_in_a_row_matter_;
  std::array<std::uint64_t, 256> ascii_joins_{};  // bits: left character * 128 + right character
  std::vector<std::uint64_t> joins_;              // left << 32 | right; open addressing, at most a quarter full
};

}  // namespace so
