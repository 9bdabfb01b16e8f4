// The terminals behind standard output and standard error, and text that fits them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace so {

// Whether standard error is a terminal that understands carriage return and "erase line" (TERM is not "dumb").
bool stderr_is_terminal();

bool stdout_is_terminal();  // the same of standard output

// Columns of that terminal. The kernel is asked anew with each call, so a window that was resized is seen. Where it
// does not know, or there is no terminal, COLUMNS; else 80. At least 20.
std::size_t stderr_columns();
std::size_t stdout_columns();

// Columns that UTF-8 text takes on a terminal: 2 for East Asian wide characters and emoji, 0 for combining marks, 1 for
// the others and for a byte that is not UTF-8. No line ends in it.
std::size_t columns_of(std::string_view text);

// Bytes from the beginning that are UTF-8: all of them, or as many as stand before the first that is not.
std::size_t utf8_prefix(std::string_view text);

// The longest part from the beginning, or the end, that takes at most `columns`; never half a character.
std::string_view head_of(std::string_view text, std::size_t columns);
std::string_view tail_of(std::string_view text, std::size_t columns);

// Text as it may be written to a terminal: what steers one (base/character.h), but for line ends and tabs, is '?'.
std::string printable_text(std::string_view text);

// Breaks lines at spaces so that each takes at most `columns`; what continues a line is indented by two more than it. A
// word that is too long for a line, such as a path, stays whole. Lines that fit are as they are.
std::string wrapped(std::string_view text, std::size_t columns);

// Fills lines of at most `columns` with the words of a text, each line indented by `indent`; an empty line separates
// paragraphs. A word that is too long for a line is broken behind '|' or ',', as "bf16|fp32" is, else it stays whole.
std::string filled(std::string_view text, std::size_t columns, std::size_t indent = 0);

}  // namespace so
