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
//   - of one whose README.md says which files belong to which split (dataset_card.h), those of a split of its default
//     config;
//   - else its .json and .jsonl files, or its .parquet, or its .arrow files, not in directories below it, not hidden
//     ones and not those that datasets derives from others (cache-*.arrow), as far as their names are for the purpose.
//     If there are none, those of data/, as data sets lie on the hub, or of the directories whose names are.
// Names say what files are for as to load_dataset of datasets: by the words train or training; validation, valid, val
// or dev; test, testing, eval or evaluation, between "-", ".", "_", blanks and digits, in capitals too. Training takes
// the files of which one says training, or where none does those that say nothing; an evaluation takes those of
// validation, or else of test, or else those that say nothing. Names as on the hub (train-00000-of-00002.parquet) are
// those of splits. One split alone is taken by an evaluation, and by training unless it is for evaluation. Throws
// Error, naming `option`, where there is no such split (those that there are are listed), where the files are of
// different kinds, where there are several configs and no default, and where there are none. `left_out` gets the data
// files that are not among them.
std::vector<std::filesystem::path> files_of_directory(const std::filesystem::path& directory, std::string_view option,
                                                      DataUse use,
                                                      std::vector<std::filesystem::path>* left_out = nullptr);

// Whether a name says that its file is for evaluation and not for training.
bool is_for_evaluation(std::string_view name);

}  // namespace so
