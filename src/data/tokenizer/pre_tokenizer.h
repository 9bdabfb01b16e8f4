// Cutting normalized text into the words that BPE encodes one by one.
#pragma once

#include <functional>
#include <string>
#include <string_view>
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

// Immutable; several threads may run it at once, each with its own scratch.
class PreTokenizer {
 public:
  struct Scratch {
    std::vector<SplitPattern::Scratch> patterns;  // one a step
    std::string prefixed;
  };

  // The steps in order; behind them the ByteLevel step, with its `add_prefix_space` and `use_regex`.
  // `fast`: recognised patterns are split by hand-written code (false only to test that code against PCRE2).
  PreTokenizer(std::vector<SplitStep> steps, bool add_prefix_space, bool use_regex, const std::string& where,
               bool fast = true);

  // Calls `word` for each word of `text` (valid UTF-8) in order. The view ends with the call.
  void run(std::string_view text, Scratch& scratch, const std::function<void(std::string_view)>& word) const;

 private:
  struct Step {
    FastSplit fast;  // null: use `pattern`
    SplitPattern pattern;
    SplitBehavior behavior;
    bool invert;
  };
  void run_step(std::size_t index, std::string_view text, Scratch& scratch,
                const std::function<void(std::string_view)>& word) const;
  void finish(std::string_view piece, Scratch& scratch, const std::function<void(std::string_view)>& word) const;

  std::vector<Step> steps_;  // before the ByteLevel step
  std::vector<Step> last_;   // the ByteLevel step's own pattern, if it has one
  bool add_prefix_space_;
};

}  // namespace so
