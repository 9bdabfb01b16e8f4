// Files that others made: all of a directory, and which are called as data.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace so {

// The names of all regular files in and below it, relative to it and sorted. Links to files count, those to directories
// do not, and what is hidden does not either.
std::vector<std::string> tree_files(const std::filesystem::path& directory);

// Whether a file is called as records are: by an ending that --data takes.
bool is_data_name(std::string_view name);

}  // namespace so
