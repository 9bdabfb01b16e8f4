// Reading the steps before and behind the model from tokenizer.json. Throws Error naming the key of whatever is
// missing, wrong or not supported. For .cpp files only.
#pragma once

#include <vector>

#include "data/tokenizer/json_reader.h"
#include "data/tokenizer/normalize_steps.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/token_decoder.h"

namespace so {

std::vector<NormalizeStep> read_normalizers(const JsonNode& node);

// A ByteLevel step is the last one.
std::vector<PreTokenizeStep> read_pre_tokenizers(const JsonNode& node);

// For tokens that spell characters.
std::vector<DecodeStep> read_decoders(const JsonNode& node);

// For tokens that spell bytes: the decoder must say so, and no more.
void check_byte_level_decoder(const JsonNode& node);

}  // namespace so
