// From tokens to text where tokens spell characters: the decoders of SentencePiece's models in tokenizer.json.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace so {

// One step; names as in tokenizer.json.
struct DecodeStep {
  enum class Kind {
    replace,        // `pattern` in each token by `content`
    byte_fallback,  // a run of tokens "<0xNN>" is the bytes; if they form no UTF-8, U+FFFD for each
    fuse,           // what follows sees one token
    strip,          // up to `count` times `pattern` at the beginning of each token
    metaspace,      // `pattern` by a space; in the first token by nothing, if `drop_first`
    blanks,         // a space between tokens: what the library does where there is no decoder
  };
  Kind kind;
  std::string pattern;
  std::string content;
  std::size_t count = 0;
  bool drop_first = false;
};

// Immutable. Tokens go in one by one, and text comes out as soon as no later token can change it.
class TokenDecoder {
 public:
  // Remembers what matters between the tokens of a text.
  class State {
   private:
    friend class TokenDecoder;
    struct OfStep {
      std::string bytes;       // of a run that has not ended
      std::size_t tokens = 0;  // seen so far
      std::size_t stripped = 0;
      bool past_beginning = false;
    };
    std::vector<OfStep> steps_;
  };

  // Behind a fuse step only strip steps may stand.
  explicit TokenDecoder(std::vector<DecodeStep> steps);

  void push(std::string_view token, State& state, std::string& text) const;
  // Ends a run of bytes as the end of the text does, but what follows is still the same text.
  void settle(State& state, std::string& text) const;

 private:
  void run(std::size_t step, std::string_view token, State& state, std::string& text) const;
  void end_bytes(std::size_t step, State& state, std::string& text) const;

  std::vector<DecodeStep> steps_;
  std::size_t fused_from_;  // steps from here on see one token, in parts
};

}  // namespace so
