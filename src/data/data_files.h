// The files that an option for data names.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "data/data_directory.h"

namespace so {

// The files of one part of such a text; each part may have a weight (document_mix.h).
using DataPart = std::vector<std::filesystem::path>;

// `text` is a file, a directory, which stands for data files in it (data_directory.h), a pattern of files (*, ?,
// [a-z]), or several of these with commas between them. A file whose name has commas is known by being there. The parts
// keep their order, and the files of a part are in that of their names. Throws Error, naming `option`, for a part that
// names no file and for a file that is named twice. Whether a file that is named as such is there is found out by who
// opens it. With Telling::log the log says which files of a directory are taken and which are not.
enum class Telling { nothing, log };
std::vector<DataPart> data_files(std::string_view text, std::string_view option, DataUse use,
                                 Telling telling = Telling::nothing);

// The files of all parts.
DataPart all_files(const std::vector<DataPart>& parts);

}  // namespace so
