// What a command prints, its result, on standard output. Names, texts and what a model says come from files of others:
// what steers a terminal (base/character.h) is not printed as it is.
#pragma once

#include <string_view>

namespace so {

// A text that is the result itself: to a terminal without what steers one, to a file or a program byte for
// byte. Throws std::system_error if it cannot be written, as the next does.
void print_exactly(std::string_view text);

// A line of JSON. What steers a terminal is escaped in its strings (\u009b), so that it means what it did.
void print_json(std::string_view json);

}  // namespace so
