// Where programs are found. An empty or relative entry of PATH or LD_LIBRARY_PATH means the working directory, which
// may be someone else's (a downloaded data set): nothing is run from there.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace so {

// A list of directories, with one of `separators` between them, without those that are not absolute. What begins with
// $ORIGIN, which the loader knows, is absolute.
std::string absolute_entries(std::string_view list, std::string_view separators);

// `name` in the first directory of PATH that has such a program; a name with a slash stands for itself if it is
// absolute. PATH's entries that are not absolute are passed over.
std::optional<std::filesystem::path> find_program(std::string_view name);

// As execve() and its like want arguments and environments: pointers to the words, and a null behind them.
std::vector<char*> pointers_to(std::vector<std::string>& words);

// As a shell takes it for one word.
std::string shell_word(const std::string& text);

// This process's environment for another program, as NAME=VALUE: PATH and LD_LIBRARY_PATH have absolute entries alone.
std::vector<std::string> environment_of_programs();

// Call first in main(). Where LD_LIBRARY_PATH leads to the working directory the program runs itself again without
// that, so that libraries which it loads by name later (NCCL, NVML) are not taken from there. The loader has read the
// variable by then: libraries that the program is linked with are beyond this.
void leave_libraries_of_working_directory(char** arguments);

}  // namespace so
