// The stages of tokenizer.json's normalizer, pre-tokenizer, post-processor and decoder. For .cpp files only.
#pragma once

#include <string_view>

#include "base/error.h"
#include "data/tokenizer/json_reader.h"

namespace so {

inline constexpr int max_nesting = 8;  // of Sequences

inline std::string_view type_of(const JsonNode& node) { return node.at("type").string(); }

[[noreturn]] inline void refuse_type(const JsonNode& node, std::string_view supported) {
  fail("{}: type \"{}\" is not supported ({} is)", node.where(), type_of(node), supported);
}

// Calls `visit` for the node itself, or, if it is a Sequence, for each of its members in `list`, nested or not.
template <class Visit>
void for_each_stage(const JsonNode& node, std::string_view list, int depth, Visit&& visit) {
  if (type_of(node) != "Sequence") {
    visit(node);
    return;
  }
  if (depth == max_nesting) fail("{}: more than {} Sequences inside each other", node.where(), max_nesting);
  node.allow_only({"type", list});
  const JsonNode members = node.at(list);
  std::size_t index = 0;
  for (const JsonElement member : members.array())
    for_each_stage(members.element(member, index++), list, depth + 1, visit);
}

inline bool is_set(const std::optional<JsonNode>& node) { return node && !node->is_null(); }

}  // namespace so
