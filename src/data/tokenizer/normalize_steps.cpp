#include "data/tokenizer/normalize_steps.h"

#include <utility>

#include "base/error.h"
#include "data/tokenizer/replace.h"
#include "data/tokenizer/unicode.h"
#include "data/tokenizer/utf8.h"

namespace so {
namespace {

std::string_view strip(std::string_view text, bool left, bool right) {
  const auto is_space = [&](std::size_t at) {
    return (UnicodeTable::get().bits(code_point_at(text, at).value) & character_bits::space) != 0;
  };
  while (left && !text.empty() && is_space(0)) text.remove_prefix(code_point_at(text, 0).length);
  while (right && !text.empty()) {
    const std::size_t last = previous_character(text, text.size());
    if (!is_space(last)) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

// The longest growth that Unicode has is elevenfold (NFKD of U+FDFA), and what published steps put in is short.
constexpr std::size_t most_growth = 64, most_put_in = 64 << 10;

struct Replaced {
  std::string_view text;
  std::size_t beginning;  // the length of the match that the text began with, else 0
};

Replaced replace_matches(std::string_view text, const SplitPattern& regex, SplitPattern::Scratch& scratch,
                         std::string_view content, std::string& storage, std::size_t most) {
  regex.start(text, scratch);
  storage.clear();
  std::size_t at = 0;
  std::size_t beginning = 0;
  for (SplitPattern::Match match; at < text.size() && storage.size() <= most && regex.next(at, scratch, match);
       at = match.end) {
    if (match.begin == 0) beginning = match.end;
    storage.append(text, at, match.begin - at).append(content);
  }
  if (at == 0) return {text, 0};
  storage.append(text, at);
  return {storage, beginning};
}

}  // namespace

Normalizer::Normalizer(std::vector<NormalizeStep> steps) {
  for (NormalizeStep& rule : steps) {
    std::optional<SplitPattern> regex;
    if (rule.is_regex) regex = SplitPattern::regex(rule.pattern, rule.where);
    steps_.push_back({std::move(rule), std::move(regex)});
  }
}

std::string_view Normalizer::run(std::string_view text, Scratch& scratch) const {
  if (scratch.patterns.empty()) scratch.patterns.resize(steps_.size());
  scratch.beginning_removed = false;
  const std::size_t most = most_growth * text.size() + most_put_in;
  std::size_t next = 0;  // the one of the two texts that `text` is not in
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const NormalizeStep& rule = steps_[i].rule;
    std::string& storage = scratch.texts[next];
    switch (rule.kind) {
      case NormalizeStep::Kind::form:
        text = to_normal_form(text, rule.form, storage);
        break;
      case NormalizeStep::Kind::prepend:
        if (!text.empty()) text = storage.assign(rule.content).append(text);
        break;
      case NormalizeStep::Kind::replace: {
        const Replaced result =
            rule.is_regex ? replace_matches(text, *steps_[i].regex, scratch.patterns[i], rule.content, storage, most)
                          : Replaced{replace_all(text, rule.pattern, rule.content, storage, most),
                                     text.starts_with(rule.pattern) ? rule.pattern.size() : 0};
        // The library lets what replaces several characters stand for the last of them.
        if (result.beginning != 0 && (rule.content.empty() || result.beginning > code_point_at(text, 0).length))
          scratch.beginning_removed = true;
        text = result.text;
        break;
      }
      case NormalizeStep::Kind::strip: {
        const std::string_view stripped = strip(text, rule.left, rule.right);
        scratch.beginning_removed = scratch.beginning_removed || stripped.data() != text.data();
        text = stripped;
        break;
      }
    }
    if (text.size() > most)
      fail("{}: the normalizer makes a text more than {} times as long; this program does not read such tokenizers",
           rule.where, most_growth);
    if (text.data() == storage.data()) next = 1 - next;
  }
  return text;
}

}  // namespace so
