// Cutting normalized text into the words that BPE encodes one by one.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/tokenizer/fast_split.h"
#include "data/tokenizer/split_pattern.h"

namespace so {

// Says how a match of the pattern, the delimiter, is treated: a piece of its own, no piece, part of the piece before or
// behind it; Contiguous: adjacent delimiters are one piece. Names as in tokenizer.json.
enum class SplitBehavior { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };

struct SplitStep {
  std::string pattern;
  bool is_regex = true;
  SplitBehavior behavior = SplitBehavior::Isolated;
  bool invert = false;  // what does not match is the delimiter
  std::string where;    // file and key, for error messages
};

// GPT-2's splitter. The bytes' spelling is not its business.
struct ByteLevelStep {
  bool add_prefix_space = false;
  bool use_regex = false;
};

// A space becomes `replacement`, which is also put in front, and begins a piece.
struct MetaspaceStep {
  enum class Prepend { always, first, never };  // first: of the text's pieces the first one alone
  std::string replacement;
  Prepend prepend = Prepend::always;
  bool split = true;
};

using PreTokenizeStep = std::variant<SplitStep, ByteLevelStep, MetaspaceStep>;

// Immutable; several threads may run it at once, each with its own scratch.
class PreTokenizer {
 public:
  struct Scratch {
    std::vector<SplitPattern::Scratch> patterns;  // one a step
    std::vector<std::string> texts;               // one a step, for steps that change their text
  };

  // `fast`: recognised patterns are split by hand-written code (false only to test that code against PCRE2).
  explicit PreTokenizer(const std::vector<PreTokenizeStep>& steps, bool fast = true);

  // Calls `word` for each word of `text` (valid UTF-8) in order. The view ends with the call. `at_beginning`: `text` is
  // what the whole text begins with.
  void run(std::string_view text, bool at_beginning, Scratch& scratch,
           const std::function<void(std::string_view)>& word) const;

 private:
  struct Split {
    FastSplit fast;  // null: use `pattern`
    SplitPattern pattern;
    SplitBehavior behavior;
    bool invert;
  };
  struct PrefixSpace {};
  using Step = std::variant<Split, PrefixSpace, MetaspaceStep>;
  class Run;

  static Split split_of(std::string_view pattern, const SplitStep& step, bool fast);

  std::vector<Step> steps_;
};

}  // namespace so
