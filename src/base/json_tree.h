// JSON of others as a tree. For .cpp files only: it brings in nlohmann's headers.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/json_text.h"

namespace so {

// As deep as simdjson, which reads records, goes. nlohmann's parser has no limit of its own, and its trees are copied,
// compared and written by recursion: three million brackets end the program.
inline constexpr std::size_t max_json_depth = 1024;

// The document; for one that is not JSON, or is nested deeper than that, a value that says is_discarded().
template <class Json = nlohmann::json>
Json json_tree(std::string_view text) {
  if (nests_deeper(text, max_json_depth)) return Json(Json::value_t::discarded);
  return Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

}  // namespace so
