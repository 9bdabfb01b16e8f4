// A DeepSpeed file as JSON, and what is said of its values.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "options/deepspeed_config.h"

namespace so {

inline constexpr std::size_t max_deepspeed_bytes = 1 << 20;  // a larger file is no configuration

// Returns an object, read as Hjson (options/hjson.h). Throws Error, which names the file `name` and where it can the
// line, for what is no object, a key that is given twice in one object, deep nesting, and another program's file.
nlohmann::json parse_deepspeed(std::string_view text, std::string_view name);

// The value for a message, cut where it is long.
std::string shown(const nlohmann::json& value);
// "true or false"
std::string_view kind_text(JsonKind kind);
bool is_kind(const nlohmann::json& value, JsonKind kind);
// Whether the value is null or "auto", which both leave the key to others.
bool is_unset(const nlohmann::json& value);

}  // namespace so
