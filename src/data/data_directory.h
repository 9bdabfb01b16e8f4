// Which files of a directory are data.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace so {

// Published data sets have splits (train, validation, test) of which a purpose takes one.
enum class DataUse { training, evaluation };

// The files of a directory, in order:
//   - of a data set that Hugging Face's datasets saved (save_to_disk), those that its state.json names; of one with
//     splits (dataset_dict.json) those of a split;
//   - else its .json and .jsonl files, or its .parquet, or its .arrow files, not in directories below it and not hidden
//     ones. If all of them are named after splits, as on the Hugging Face hub (train-00000-of-00002.parquet,
//     test.jsonl), those of one split. If there are none, those of data/, as data sets lie on the hub, or of the
//     directories named after splits.
// Training takes the split train, an evaluation validation or else test; where there is one split alone, that. Throws
// Error, naming `option`, where there is no such split (those that there are are listed), where the files are of
// different kinds, and where there are none.
std::vector<std::filesystem::path> files_of_directory(const std::filesystem::path& directory, std::string_view option,
                                                      DataUse use);

}  // namespace so
