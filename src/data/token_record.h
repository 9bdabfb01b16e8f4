// Records of token ids, with the masks and the packing that other programs write beside them. For .cpp files only.
#pragma once

#include <simdjson.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "data/records.h"

namespace so {

// Whether a record of token ids means something by this key.
bool is_token_key(std::string_view key);
std::vector<std::string_view> token_keys();

// Throws Error, without a location, unless the record is one whose meaning is plain: lists of one value a token (or
// that as the one row of a batch), masks of 0 and 1, and documents that all keys which say so divide alike.
TokenRecord token_record(const simdjson::dom::object& record, std::int32_t vocabulary_size);

}  // namespace so
