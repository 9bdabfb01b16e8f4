#include "data/tokenizer/token_bound.h"

#include <algorithm>

namespace so {
namespace {

// The most tokens that `content`, which a step puts into texts, can become.
std::uint64_t most_tokens_of(std::string_view content, const TokenizerSpec& spec) {
  const bool changes = std::any_of(spec.normalizers.begin(), spec.normalizers.end(),
                                   [](const NormalizeStep& step) { return step.kind == NormalizeStep::Kind::form; });
  if (spec.byte_level || changes) return content.size();
  std::uint64_t most = 0;
  for (std::size_t begin = 0; begin < content.size();) {
    std::size_t end = begin + 1;
    while (end < content.size() && (content[end] & 0xC0) == 0x80) ++end;
    most += spec.model.find(content.substr(begin, end - begin)) >= 0 ? 1 : end - begin;
    begin = end;
  }
  return most;
}

// `content` goes before each text between added tokens. An added token becomes one token, so the rest of its bytes pay
// for what goes before the text behind it, if they are enough.
void put_in_front(std::string_view content, const TokenizerSpec& spec, TokenBound& bound) {
  const std::uint64_t most = most_tokens_of(content, spec);
  const bool paid = std::all_of(spec.added_tokens.begin(), spec.added_tokens.end(),
                                [&](const AddedToken& token) { return token.content.size() > most; });
  if (paid)
    bound.front += most;
  else
    bound.grow(1 + most);
}

}  // namespace

TokenBound token_bound_of(const TokenizerSpec& spec) {
  TokenBound bound;
  bool ascii_stays = true;  // no step has made other characters of ASCII
  for (const NormalizeStep& step : spec.normalizers) {
    switch (step.kind) {
      case NormalizeStep::Kind::form: {
        // In UTF-8: of U+1D160 and of U+FDFA. Of an escape, which is ASCII, a syllable of Hangul and U+FDFA again.
        const bool canonical = step.form == NormalForm::nfc || step.form == NormalForm::nfd;
        const std::uint64_t most = canonical ? 3 : 11, most_of_escape = step.form == NormalForm::nfc ? 1
                                                                        : canonical                  ? 2
                                                                                                     : 6;
        TokenBound::multiply(bound.other, most);
        TokenBound::multiply(bound.front, most);
        TokenBound::multiply(bound.ascii, ascii_stays ? most_of_escape : most);
        break;
      }
      case NormalizeStep::Kind::prepend:
        put_in_front(step.content, spec, bound);
        ascii_stays = false;
        break;
      case NormalizeStep::Kind::replace:  // of a byte or more; a regular expression may match between bytes, too
        bound.grow(std::max<std::uint64_t>(1, most_tokens_of(step.content, spec) + (step.is_regex ? 1 : 0)));
        ascii_stays = false;
        break;
      case NormalizeStep::Kind::strip:
        break;
    }
  }
  bool first = true;  // of the pre-tokenizers, so that its pieces are the texts between added tokens
  for (const PreTokenizeStep& step : spec.pre_tokenizers) {
    // Each piece, which has a byte or more, may be given something in front.
    if (const auto* bytes = std::get_if<ByteLevelStep>(&step); bytes != nullptr && bytes->add_prefix_space)
      bound.grow(2);
    if (const auto* spaces = std::get_if<MetaspaceStep>(&step)) {
      const std::uint64_t most = most_tokens_of(spaces->replacement, spec);
      bound.grow(std::max<std::uint64_t>(1, most));
      if (spaces->prepend != MetaspaceStep::Prepend::never) {
        if (first)
          put_in_front(spaces->replacement, spec, bound);
        else
          bound.grow(1 + most);
      }
    }
    first = false;
  }
  return bound;
}

std::uint64_t TokenBound::of(std::string_view text) const {
  const auto other_bytes =
      static_cast<std::uint64_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0x80) != 0; }));
  return ascii * (text.size() - other_bytes) + other * other_bytes + front;
}

}  // namespace so
