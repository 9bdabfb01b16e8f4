// Hjson, as DeepSpeed reads its files: JSON whose names and texts need no quotes, whose commas may be missing or stand
// at the end, with comments, and with no braces around the whole.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace so {

// Throws Error, which names the file `name`, the line and the column, for what is no Hjson, a name that is given twice
// in one object, and nesting deeper than 32 levels. In Hjson a text without quotes ends with its line: a comma
// or a comment behind it belong to it. Texts between ''' are refused.
nlohmann::json parse_hjson(std::string_view text, std::string_view name);

}  // namespace so
