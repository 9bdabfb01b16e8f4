// A record as it is trained, for people to look at.
#pragma once

#include <string>

#include "data/example.h"
#include "data/tokenizer/tokenizer.h"
#include "options/choices.h"

namespace so {

// Whether standard output shows colours: "auto" asks NO_COLOR, TERM and whether it is a terminal.
bool use_color(ColorUse choice);

// The text of the example's tokens. The trained ones are green, or without colour between the marks ⟦ and ⟧; a control
// character, which could change the terminal, is '?'. Ends with a line end.
std::string shown_example(const Example& example, const Tokenizer& tokenizer, bool color);

// For each token whether it is trained. The first never is.
std::vector<bool> trained_tokens(const Example& example);

}  // namespace so
