// Which token holds a byte of the text.
#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "data/tokenizer/token_surface.h"
#include "data/tokenizer/tokenizer.h"

namespace so {
namespace {

constexpr std::string_view blank = "\xe2\x96\x81";

}  // namespace

void append_character_surface(std::string_view token, std::string& text) {
  if (token.size() == 6 && token.starts_with("<0x") && token.ends_with('>')) {
    unsigned byte = 0;
    const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
    if (error == std::errc() && end == token.data() + 5) {
      text += static_cast<char>(byte);
      return;
    }
  }
  for (std::size_t at = 0; at < token.size();) {
    if (token.substr(at).starts_with(blank)) {
      text += ' ';
      at += blank.size();
    } else {
      text += token[at++];
    }
  }
}

std::vector<std::int32_t> Tokenizer::encode_with_places(std::string_view text, std::span<const std::size_t> places,
                                                        std::vector<std::size_t>& tokens) const {
  std::vector<Part> parts;
  const std::vector<std::int32_t> ids = encode(text, false, SpecialTokens::parsed, &parts, nullptr);
  tokens.clear();
  std::string surface;
  std::size_t token = 0, at = 0;   // how far the tokens of the part have been followed, and the byte that they reach
  const Part* followed = nullptr;  // the part
  bool matches = true;             // whether its tokens spell it
  const auto step = [&](const Part& part) {
    surface.clear();
    append_surface(ids[token], surface);
    std::string_view spelt = surface;
    // A model on characters puts a blank before a text.
    if (token == part.first_token && spelt.starts_with(' ') && text[at] != ' ') spelt.remove_prefix(1);
    matches = text.substr(at, part.end - at).starts_with(spelt);
    at += spelt.size();
    ++token;
  };
  for (const std::size_t place : places) {
    const auto behind = std::upper_bound(parts.begin(), parts.end(), place,
                                         [](std::size_t byte, const Part& part) { return byte < part.begin; });
    SO_CHECK(behind != parts.begin() && place < text.size(), "place {} in {} bytes", place, text.size());
    const Part& part = *(behind - 1);
    if (part.added) {
      tokens.push_back(part.first_token);
      continue;
    }
    if (followed != &part) {
      followed = &part;
      token = part.first_token;
      at = part.begin;
      matches = true;
    }
    const std::size_t last = behind == parts.end() ? ids.size() : behind->first_token;
    while (matches && at <= place && token < last) step(part);
    if (matches && at > place) {
      tokens.push_back(token - 1);
      continue;
    }
    // The part's text was changed before it became tokens.
    const std::vector<std::int32_t> before = encode(text.substr(0, place), false, SpecialTokens::parsed, nullptr);
    const auto [mine, other] = std::mismatch(ids.begin(), ids.end(), before.begin(), before.end());
    tokens.push_back(std::min(static_cast<std::size_t>(mine - ids.begin()), ids.size() - 1));
  }
  return ids;
}

}  // namespace so
