// Split patterns of tokenizer.json, written for Oniguruma, run by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace so {

// Immutable; several threads may search at once, each with its own Scratch.
class SplitPattern {
 public:
  struct Match {
    std::size_t begin;
    std::size_t end;
  };

  // The memory that a search needs besides the pattern. Made for one pattern, used by one thread at a time.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(Scratch&&) noexcept;
    Scratch& operator=(Scratch&&) noexcept;

   private:
    friend class SplitPattern;
    struct Pcre2;
    std::unique_ptr<Pcre2> pcre2_;
    std::string_view text_;
    std::string stand_in_;  // the text with characters that PCRE2 may not know replaced
  };

  // A regular expression. Only constructs that mean the same to Oniguruma and PCRE2, or can be rewritten so that they
  // do, are accepted; the others, and patterns that can match the empty string, are refused by name. `where` is the
  // file and key for error messages.
  static SplitPattern regex(std::string_view pattern, const std::string& where);
  static SplitPattern literal(std::string_view text, const std::string& where);

  // Sets the text to search (valid UTF-8), which must outlive the search.
  void start(std::string_view text, Scratch& scratch) const;
  // The leftmost match at or behind `from`; false if there is none. Throws Error if the pattern takes too many steps,
  // or far longer than patterns do for as much text as this scratch has seen.
  bool next(std::size_t from, Scratch& scratch, Match& match) const;

 private:
  struct Code;
  explicit SplitPattern(std::shared_ptr<const Code> code);
  std::shared_ptr<const Code> code_;
};

// The PCRE2 pattern that matches what `pattern` matches in Oniguruma. Throws Error.
std::string translate_pattern(std::string_view pattern, const std::string& where);

}  // namespace so
