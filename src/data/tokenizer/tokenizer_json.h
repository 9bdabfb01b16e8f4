// The content of a tokenizer.json, checked, as plain data.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/vocabulary.h"

namespace so {

struct TokenizerSpec {
  Vocabulary model;                          // "model"."vocab", as spelt
  Vocabulary words;                          // of those, the ones that spell bytes, as bytes
  std::array<std::int32_t, 256> byte_ids{};  // -1 for the bytes that never occur in UTF-8 and have no token
  std::vector<Merge> merges;                 // by rank
  bool ignore_merges = false;                // a word that is a token is that token, whatever the merges give
  std::vector<AddedToken> added_tokens;      // contents distinct, ids consistent with the vocabulary
  bool nfc = false;
  std::vector<SplitStep> splits;
  bool add_prefix_space = false;
  bool use_regex = false;            // of the ByteLevel pre-tokenizer
  std::vector<std::int32_t> before;  // ids that the post-processor puts around a single sequence
  std::vector<std::int32_t> after;
  std::vector<std::string> warnings;  // what is ignored, one line each
};

// `name`: the file, for error messages. Throws Error naming the key of whatever is missing, wrong or not supported.
TokenizerSpec read_tokenizer_json(std::string_view json, const std::string& name);

}  // namespace so
