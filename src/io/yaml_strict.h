// What YAML's specification forbids and libyaml reads all the same, often to something that was not meant.
#pragma once

#include <string_view>

namespace so {

inline constexpr int max_yaml_depth = 32;

// Returns at the first syntax error that libyaml finds itself, without a word. `text` must be UTF-8, without a byte
// order mark. Throws Error, which names the file `name` and the line, for
// - a comment right behind a token, without a space between them,
// - a line of a text in quotes, or of a list or mapping in brackets, that is indented no more than what it is in,
// - a directive behind content, a "-" as a value, blank lines of a block text that are indented more than the text,
// - nesting deeper than max_yaml_depth,
// - U+0085, U+2028 and U+2029 outside of escapes: libyaml takes them for line breaks, as YAML 1.1 did.
void check_strict_yaml(std::string_view text, std::string_view name);

}  // namespace so
