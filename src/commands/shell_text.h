// Makes, from the commands and their option tables, the texts by which shells and man know the program.
#pragma once

#include <string>

namespace so {

std::string bash_completion();  // a script that defines and registers the completion
std::string zsh_completion();   // the file _superoffload of a directory on $fpath; it may be sourced, too
std::string manual_page();      // superoffload(1), as roff with man's macros

}  // namespace so
