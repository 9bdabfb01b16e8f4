#include "data/data_directory.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/json_tree.h"
#include "data/tables/table_reader.h"

namespace so {
namespace {

namespace fs = std::filesystem;
using Files = std::vector<fs::path>;
using Splits = std::map<std::string, Files>;

constexpr std::uint64_t most_description_bytes = 64 << 20;
const std::vector<std::string_view> training_names = {"train", "training"};
const std::vector<std::string_view> evaluation_names = {"validation", "valid",      "val",  "dev",
                                                        "eval",       "evaluation", "test", "testing"};

bool names_split(std::string_view text) {
  const auto has = [&](const auto& names) { return std::find(names.begin(), names.end(), text) != names.end(); };
  return has(training_names) || has(evaluation_names);
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// The split that a file's name says: "train.parquet", "train_sft-00000-of-00004-1a2b.parquet".
std::optional<std::string> split_of(const fs::path& file) {
  const std::string stem = file.stem().string();
  if (names_split(stem)) return stem;
  const std::size_t of = stem.find("-of-");
  const std::size_t dash = of == std::string::npos || of == 0 ? std::string::npos : stem.rfind('-', of - 1);
  if (dash == std::string::npos || dash == 0) return std::nullopt;
  const std::string_view all = std::string_view(stem).substr(of + 4);
  if (!is_number(std::string_view(stem).substr(dash + 1, of - dash - 1)) || !is_number(all.substr(0, all.find('-'))))
    return std::nullopt;
  return stem.substr(0, dash);
}

std::string choose_split(const std::set<std::string>& splits, const fs::path& directory, std::string_view option,
                         DataUse use, std::string_view example) {
  if (splits.size() == 1) return *splits.begin();
  for (const std::string_view name : use == DataUse::training ? training_names : evaluation_names)
    if (const auto found = splits.find(std::string(name)); found != splits.end()) return *found;
  fail("{} {}: the data set has the splits {}, none of which is for {}; name the one that is meant: {}", option,
       printable_path(directory), fmt::join(splits, ", "), use == DataUse::training ? "training" : "evaluation",
       fmt::format(fmt::runtime(example), printable_path(directory), *splits.begin()));
}

nlohmann::json description(const fs::path& file) {
  nlohmann::json tree = json_tree(read_text_file(file, most_description_bytes));
  if (tree.is_discarded())
    fail("{}: not valid JSON, so the data set beside it cannot be read; save it again", printable_path(file));
  return tree;
}

// A name that leads out of its directory is none that datasets writes.
bool is_plain_name(const std::string& name) { return !name.empty() && name != ".." && name.find('/') == name.npos; }

Files files_of_saved(const fs::path& directory) {
  const fs::path state = directory / "state.json";
  Files files;
  const nlohmann::json saved = description(state);
  const auto list = saved.find("_data_files");
  const auto bad = [&] {
    fail("{}: \"_data_files\" must be a list of {{\"filename\": NAME}}, as datasets writes it", printable_path(state));
  };
  if (list == saved.end() || !list->is_array()) bad();
  for (const nlohmann::json& entry : *list) {
    if (!entry.is_object() || !entry.contains("filename") || !entry["filename"].is_string()) bad();
    const auto name = entry["filename"].get<std::string>();
    if (!is_plain_name(name)) bad();
    files.push_back(directory / name);
    if (!path_exists(files.back()))
      fail("{} names {}, which is not there; is the copy whole?", printable_path(state), printable(name));
  }
  if (files.empty()) fail("{}: the data set has no files", printable_path(state));
  return files;
}

fs::path split_of_saved(const fs::path& directory, std::string_view option, DataUse use) {
  const fs::path dict = directory / "dataset_dict.json";
  std::set<std::string> splits;
  const nlohmann::json saved = description(dict);
  if (const auto list = saved.find("splits"); list != saved.end() && list->is_array())
    for (const nlohmann::json& name : *list)
      if (name.is_string() && is_plain_name(name.get<std::string>())) splits.insert(name.get<std::string>());
  if (splits.empty()) fail("{}: \"splits\" must be a list of names, as datasets writes it", printable_path(dict));
  const fs::path split = directory / choose_split(splits, directory, option, use, "{}/{}");
  if (!path_exists(split / "state.json"))
    fail("{} names the split {}, which is not there; is the copy whole?", printable_path(dict),
         printable(split.filename().string()));
  return split;
}

std::string_view kind_of(const fs::path& file) {
  const std::string name = file.filename().string();
  if (name.starts_with(".") || name == "dataset_info.json" || name == "dataset_infos.json") return {};
  if (name.ends_with(".json") || name.ends_with(".jsonl")) return ".json and .jsonl";
  if (is_table_name(file)) return name.ends_with(".parquet") ? ".parquet" : ".arrow";
  return {};
}

// All data files of the directory itself; none is possible.
Files data_files_in(const fs::path& directory, std::string_view option) {
  Files files;
  for (const fs::path& entry : entries_of(directory))
    if (!kind_of(entry).empty() && is_regular_path(entry)) files.push_back(entry);
  for (const fs::path& file : files)
    if (kind_of(file) != kind_of(files.front()))
      fail(
          "{} {}: the directory holds {} files and {} files, perhaps the same records twice; name those that are meant: "
          "\"{}/*{}\"",
          option, printable_path(directory), kind_of(files.front()), kind_of(file), printable_path(directory),
          file.extension().string());
  return files;
}

Files chosen_by_name(const Files& files, const fs::path& directory, std::string_view option, DataUse use) {
  Splits splits;
  for (const fs::path& file : files) {
    const auto split = split_of(file);
    if (!split) return files;
    splits[*split].push_back(file);
  }
  std::set<std::string> names;
  for (const auto& [name, of_split] : splits) names.insert(name);
  const std::string example = "\"{}/{}*" + files.front().extension().string() + "\"";
  return splits.at(choose_split(names, directory, option, use, example));
}

// Directories below that have data files; as the hub has data/, or one for each split.
Files files_below(const fs::path& directory, std::string_view option, DataUse use) {
  std::set<std::string> below;
  for (const fs::path& entry : entries_of(directory)) {
    const std::string name = entry.filename().string();
    if (!name.starts_with(".") && is_directory_path(entry) && !data_files_in(entry, option).empty()) below.insert(name);
  }
  if (below.contains("data")) return files_of_directory(directory / "data", option, use);
  if (!below.empty() && std::all_of(below.begin(), below.end(), names_split))
    return files_of_directory(directory / choose_split(below, directory, option, use, "{}/{}"), option, use);
  fail("{} {}: the directory holds no .json, .jsonl, .parquet or .arrow file{}", option, printable_path(directory),
       below.empty() ? "" : fmt::format("; directories in it do, name one of them: {}", fmt::join(below, ", ")));
}

}  // namespace

std::vector<fs::path> files_of_directory(const fs::path& directory, std::string_view option, DataUse use) {
  if (path_exists(directory / "dataset_dict.json")) return files_of_saved(split_of_saved(directory, option, use));
  if (path_exists(directory / "state.json") && path_exists(directory / "dataset_info.json"))
    return files_of_saved(directory);
  const Files files = data_files_in(directory, option);
  return files.empty() ? files_below(directory, option, use) : chosen_by_name(files, directory, option, use);
}

}  // namespace so
