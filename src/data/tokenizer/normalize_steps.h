// The normalizers of tokenizer.json.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/split_pattern.h"

namespace so {

struct NormalizeStep {
  enum class Kind {
    form,     // a Unicode normalization form
    prepend,  // `content` before a text that is not empty
    replace,  // each match of `pattern` by `content`
    strip,    // white space off the ends
  };
  Kind kind;
  NormalForm form = NormalForm::nfc;
  std::string pattern;
  bool is_regex = false;
  std::string content;
  bool left = false;
  bool right = false;
  std::string where;  // file and key, for error messages
};

// Immutable; several threads may run it at once, each with its own scratch.
class Normalizer {
 public:
  struct Scratch {
    std::array<std::string, 2> texts;
    std::vector<SplitPattern::Scratch> patterns;  // one a step
    bool beginning_removed = false;               // result: a step took away what the text began with
  };

  explicit Normalizer(std::vector<NormalizeStep> steps);

  // `text` (valid UTF-8) itself where nothing changes, else a view into the scratch until its next use. Throws Error,
  // with the step's name, where the text becomes many times as long.
  std::string_view run(std::string_view text, Scratch& scratch) const;

 private:
  struct Step {
    NormalizeStep rule;
    std::optional<SplitPattern> regex;
  };
  std::vector<Step> steps_;
};

}  // namespace so
