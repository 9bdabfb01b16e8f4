// The content of a tokenizer.json, checked, as plain data.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/added_tokens.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/normalize_steps.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/token_decoder.h"
#include "data/tokenizer/vocabulary.h"

namespace so {

struct TokenizerSpec {
  bool byte_level = false;                   // tokens spell bytes; else they spell characters
  Vocabulary model;                          // "model"."vocab", as spelt
  Vocabulary words;                          // byte_level: of those, the ones that spell bytes, as bytes
  std::array<std::int32_t, 256> byte_ids{};  // the bytes' tokens if byte_level or byte_fallback; -1: none
  std::vector<Merge> merges;                 // by rank
  bool ignore_merges = false;                // a word that is a token is that token, whatever the merges give
  bool byte_fallback = false;                // a character without a token is bytes
  std::optional<std::int32_t> unk;           // or this token
  bool fuse_unk = false;                     // which stands for several characters in a row, too
  std::vector<AddedToken> added_tokens;      // contents distinct, ids consistent with the vocabulary
  std::vector<NormalizeStep> normalizers;
  std::vector<PreTokenizeStep> pre_tokenizers;
  std::vector<DecodeStep> decoders;  // unless byte_level
  std::vector<std::int32_t> before;  // ids that the post-processor puts around a single sequence
  std::vector<std::int32_t> after;
  std::vector<std::string> warnings;  // what is ignored, one line each
};

// `name`: the file, for error messages. Throws Error naming the key of whatever is missing, wrong or not supported.
TokenizerSpec read_tokenizer_json(std::string_view json, const std::string& name);

}  // namespace so
