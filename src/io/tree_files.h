// All files of a directory that others made.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace so {

// The names of all regular files in and below it, relative to it and sorted. Links to files count, those to directories
// do not, and what is hidden does not either.
std::vector<std::string> tree_files(const std::filesystem::path& directory);

}  // namespace so
