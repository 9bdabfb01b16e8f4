// Lists in an option's text.
#pragma once

#include <string_view>
#include <vector>

namespace so {

// Returns the parts between the commas of a list; an empty text is a list of one empty part.
std::vector<std::string_view> between_commas(std::string_view text);

}  // namespace so
