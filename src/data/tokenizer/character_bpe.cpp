#include "data/tokenizer/character_bpe.h"

#include <algorithm>
#include <bit>
#include <unordered_set>

namespace so {

CharacterBpe::CharacterBpe(const Vocabulary& model, const std::vector<Merge>& merges, const UnknownCharacters& unknown)
    : bpe_(merges), unknown_(unknown) {
  page_of_.fill(-1);
  for (std::int32_t id = 0; id < model.end_id(); ++id) {
    const std::string_view token = model.string(id);
    if (token.empty()) continue;
    if (const CodePoint c = code_point_at(token, 0); c.length == token.size()) add_token(c.value, id);
  }
  const bool every_byte =
      unknown.bytes && std::find(unknown.bytes->begin(), unknown.bytes->end(), -1) == unknown.bytes->end();
  unknown_in_a_row_matter_ = !every_byte;
  find_joins(model, merges);
}

void CharacterBpe::add_token(std::uint32_t character, std::int32_t id) {
  std::int32_t& page = page_of_[character >> 8];
  if (page < 0) {
    page = static_cast<std::int32_t>(tokens_.size() >> 8);
    tokens_.resize(tokens_.size() + 256, -1);
  }
  tokens_[static_cast<std::size_t>(page) << 8 | (character & 255)] = id;
}

void CharacterBpe::find_joins(const Vocabulary& model, const std::vector<Merge>& merges) {
  std::unordered_set<std::int32_t> not_characters;  // tokens that are symbols to begin with, but spell something else
  if (unknown_.bytes) not_characters.insert(unknown_.bytes->begin(), unknown_.bytes->end());
  if (unknown_.token) not_characters.insert(*unknown_.token);

  std::unordered_set<std::uint64_t> pairs;
  for (const Merge& merge : merges) {
    // No published model merges bytes. Where one did, its tokens' spelling would not tell what stands at their ends.
    if (not_characters.contains(merge.left) || not_characters.contains(merge.right)) cuts_ = false;
    const std::string_view left = model.string(merge.left);
    const std::string_view right = model.string(merge.right);
    if (left.empty() || right.empty()) continue;  // no symbol is empty
    const std::uint32_t last = code_point_at(left, previous_character(left, left.size())).value;
    const std::uint32_t first = code_point_at(right, 0).value;
    if ((last | first) < 128)
      ascii_joins_[last << 1 | first >> 6] |= std::uint64_t{1} << (first & 63);
    else
      pairs.insert(static_cast<std::uint64_t>(last) << 32 | first);
  }
  joins_.assign(std::bit_ceil(pairs.size() * 4 + 4), free_slot);
  for (const std::uint64_t key : pairs) {
    std::size_t slot = slot_of(key);
    while (joins_[slot] != free_slot) slot = (slot + 1) & (joins_.size() - 1);
    joins_[slot] = key;
  }
}

// As the `tokenizers` library does, down to its order: an unknown character's token is held back until a known
// character or the end, and bytes do not wait for it.
void CharacterBpe::encode_piece(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  bool held_back = false;
  const auto release = [&] {
    if (held_back) symbols.push_back(*unknown_.token);
    held_back = false;
  };
  const auto append_bytes = [&](std::string_view character) {
    if (!unknown_.bytes) return false;
    const std::size_t before = symbols.size();
    for (const char byte : character) symbols.push_back((*unknown_.bytes)[static_cast<unsigned char>(byte)]);
    if (std::find(symbols.begin() + static_cast<std::ptrdiff_t>(before), symbols.end(), -1) == symbols.end())
      return true;
    symbols.resize(before);
    return false;
  };
  for (std::size_t at = 0; at < piece.size();) {
    const CodePoint c = code_point_at(piece, at);
    if (const std::int32_t id = token_of(c.value); id >= 0) {
      release();
      symbols.push_back(id);
    } else if (!append_bytes(piece.substr(at, c.length)) && unknown_.token) {
      if (!unknown_.fused) release();
      held_back = true;
    }
    at += c.length;
  }
  release();
  bpe_.merge(symbols, scratch.bpe, ids);
}

}  // namespace so
