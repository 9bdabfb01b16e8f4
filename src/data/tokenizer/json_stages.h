// The stages of tokenizer.json's normalizer, pre-tokenizer, post-processor and decoder. For .cpp files only.
#pragma once

#include <string_view>

#include "base/error.h"
#include "data/tokenizer/json_reader.h"

namespace so {

inline constexpr int max_nesting = 8;   // of Sequences
inline constexpr int max_stages = 100;  // a published tokenizer has 10 or so

inline std::string_view type_of(const JsonNode& node) { return node.at("type").string(); }

[[noreturn]] inline void refuse_type(const JsonNode& node, std::string_view supported) {
  fail("{}: type \"{}\" is not supported ({} is)", node.where(), type_of(node), supported);
}

template <class Visit>
void visit_stages(const JsonNode& node, std::string_view list, int depth, const Visit& visit) {
  if (type_of(node) != "Sequence") return visit(node);
  if (depth == max_nesting) fail("{}: more than {} Sequences inside each other", node.where(), max_nesting);
  node.allow_only({"type", list});
  const JsonNode members = node.at(list);
  std::size_t index = 0;
  for (const JsonElement member : members.array())
    visit_stages(members.element(member, index++), list, depth + 1, visit);
}

// Calls `visit` for the node itself, or, if it is a Sequence, for each of its members in `list`, nested or not. Each
// text goes through all of them, so their number has a limit.
template <class Visit>
void for_each_stage(const JsonNode& node, std::string_view list, const Visit& visit) {
  int stages = 0;
  visit_stages(node, list, 0, [&](const JsonNode& stage) {
    if (++stages > max_stages) fail("{} has more than {} stages; no more are read", node.where(), max_stages);
    visit(stage);
  });
}

inline bool is_set(const std::optional<JsonNode>& node) { return node && !node->is_null(); }

}  // namespace so
