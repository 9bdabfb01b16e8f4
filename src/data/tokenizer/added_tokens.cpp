#include "data/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "data/tokenizer/unicode.h"
#include "data/tokenizer/utf8.h"

namespace so {
namespace {

bool is_space(std::uint32_t code_point) { return UnicodeTable::get().bits(code_point) & character_bits::space; }

bool word_ends_at(std::string_view text, std::size_t at) {
  return at > 0 && UnicodeTable::get().is_word(code_point_at(text, previous_character(text, at)).value);
}

bool word_begins_at(std::string_view text, std::size_t at) {
  return at < text.size() && UnicodeTable::get().is_word(code_point_at(text, at).value);
}

std::size_t skip_spaces_left(std::string_view text, std::size_t at, std::size_t limit) {
  while (at > limit) {
    const std::size_t before = previous_character(text, at);
    if (!is_space(code_point_at(text, before).value)) break;
    at = before;
  }
  return at;
}

std::size_t skip_spaces_right(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const CodePoint c = code_point_at(text, at);
    if (!is_space(c.value)) break;
    at += c.length;
  }
  return at;
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  first_.fill(none);
  for (std::size_t token = 0; token < tokens_.size(); ++token) {
    const std::string& content = tokens_[token].content;
    std::int32_t* node = &first_[static_cast<unsigned char>(content[0])];
    for (std::size_t i = 1;; ++i) {
      if (*node == none) {
        *node = static_cast<std::int32_t>(token_at_.size());
        token_at_.push_back(none);
      }
      if (i == content.size()) break;
      const std::uint64_t key = static_cast<std::uint64_t>(*node) << 8 | static_cast<unsigned char>(content[i]);
      node = &next_.try_emplace(key, none).first->second;
    }
    token_at_[static_cast<std::size_t>(*node)] = static_cast<std::int32_t>(token);
  }
}

std::int32_t AddedTokenMatcher::child(std::int32_t node, unsigned char byte) const {
  const auto found = next_.find(static_cast<std::uint64_t>(node) << 8 | byte);
  return found != next_.end() ? found->second : none;
}

AddedTokenMatcher::Found AddedTokenMatcher::longest_at(std::string_view text, std::size_t at) const {
  Found found{0, none};
  std::int32_t node = first_[static_cast<unsigned char>(text[at])];
  for (std::size_t length = 1; node != none; ++length) {
    if (token_at_[static_cast<std::size_t>(node)] != none) found = {length, token_at_[static_cast<std::size_t>(node)]};
    if (at + length == text.size()) break;
    node = child(node, static_cast<unsigned char>(text[at + length]));
  }
  return found;
}

void AddedTokenMatcher::find_all(std::string_view text, SpecialTokens special, std::vector<Match>& matches) const {
  matches.clear();
  std::size_t taken = 0;                     // end of the last match, its white space included
  std::size_t spaces_begin = 0, spaces = 0;  // where the last white space behind a token began and ended
  for (std::size_t at = 0; at < text.size();) {
    if (first_[static_cast<unsigned char>(text[at])] == none) {
      ++at;
      continue;
    }
    const Found found = longest_at(text, at);
    if (found.length == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<std::size_t>(found.token)];
    std::size_t begin = at;
    std::size_t end = at + found.length;
    at = end;  // the search goes on behind the token, even where it is refused or takes white space along
    if (token.special && special == SpecialTokens::as_text) continue;
    if (token.single_word && (word_ends_at(text, begin) || word_begins_at(text, end))) continue;
    if (token.lstrip) begin = std::max(skip_spaces_left(text, begin, std::min(taken, begin)), taken);
    if (token.rstrip) {
      const bool within = end >= spaces_begin && end < spaces;  // of a token that is white space itself
      if (!within) spaces = skip_spaces_right(text, spaces_begin = end);
      end = spaces;
    }
    if (begin >= end) continue;  // white space that the token before took along
    matches.push_back({begin, end, token.id});
    taken = end;
  }
}

}  // namespace so
