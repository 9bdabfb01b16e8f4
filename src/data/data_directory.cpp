#include "data/data_directory.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/json_tree.h"
#include "data/dataset_card.h"
#include "data/tables/table_reader.h"
#include "io/tree_files.h"

namespace so {
namespace {

namespace fs = std::filesystem;
using Files = std::vector<fs::path>;
using Splits = std::map<std::string, Files>;

constexpr std::uint64_t most_description_bytes = 64 << 20;
const std::vector<std::string_view> training_names = {"train", "training"};
const std::vector<std::string_view> evaluation_names = {"validation", "valid",      "val",  "dev",
                                                        "eval",       "evaluation", "test", "testing"};

bool is_one_of(const std::vector<std::string_view>& names, std::string_view text) {
  return std::find(names.begin(), names.end(), text) != names.end();
}
bool names_split(std::string_view text) { return is_one_of(training_names, text) || is_one_of(evaluation_names, text); }

// What a name is for, each of them if it has words for several.
struct Purpose {
  bool training = false, validation = false, test = false;

  bool any() const { return training || validation || test; }
};

Purpose purpose_of(std::string_view name) {
  static const std::vector<std::string_view> validation = {"validation", "valid", "val", "dev"};
  Purpose purpose;
  std::string word;
  const auto take = [&] {
    purpose.training = purpose.training || is_one_of(training_names, word);
    if (is_one_of(evaluation_names, word)) (is_one_of(validation, word) ? purpose.validation : purpose.test) = true;
    word.clear();
  };
  for (const char c : name) {
    if (std::string_view("-._ 0123456789").find(c) != std::string_view::npos)
      take();
    else
      word += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  }
  take();
  return purpose;
}

bool is_cache_of_datasets(std::string_view name) { return name.starts_with("cache-") && name.ends_with(".arrow"); }

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

// `example` says how a user names the split.
std::string choose_split(const std::set<std::string>& splits, const fs::path& directory, std::string_view option,
                         DataUse use, const std::function<std::string(const std::string&)>& example) {
  const bool training = use == DataUse::training;
  if (splits.size() == 1 && !(training && is_for_evaluation(*splits.begin()))) return *splits.begin();
  for (const std::string_view name : training ? training_names : evaluation_names)
    if (const auto found = splits.find(std::string(name)); found != splits.end()) return *found;
  // Of another name, as json-train or train_sft, where one alone is for this.
  std::vector<std::string> meant;
  for (const std::string& name : splits) {
    const Purpose purpose = purpose_of(name);
    if (training ? purpose.training : purpose.validation || purpose.test) meant.push_back(name);
  }
  if (meant.size() == 1) return meant.front();
  fail("{} {}: the data set has the splits {}, {} for {}; name the one that is meant: {}", option,
       printable_path(directory), fmt::join(splits, ", "), meant.empty() ? "none of which is" : "several of which are",
       training ? "training" : "evaluation", example(meant.empty() ? *splits.begin() : meant.front()));
}

std::string choose_directory(const std::set<std::string>& splits, const fs::path& directory, std::string_view option,
                             DataUse use) {
  return choose_split(splits, directory, option, use,
                      [&](const std::string& split) { return printable_path(directory / split); });
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
  const fs::path split = directory / choose_directory(splits, directory, option, use);
  if (!path_exists(split / "state.json"))
    fail("{} names the split {}, which is not there; is the copy whole?", printable_path(dict),
         printable(split.filename().string()));
  return split;
}

std::string_view kind_of(const fs::path& file) {
  const std::string name = file.filename().string();
  if (name.starts_with(".") || is_cache_of_datasets(name) || name == "dataset_info.json" ||
      name == "dataset_infos.json")
    return {};
  if (name.ends_with(".json") || name.ends_with(".jsonl")) return ".json and .jsonl";
  if (is_table_name(file)) return name.ends_with(".parquet") ? ".parquet" : ".arrow";
  return {};
}

void require_one_kind(const Files& files, const fs::path& directory, std::string_view option) {
  for (const fs::path& file : files)
    if (kind_of(file) != kind_of(files.front()))
      fail(
          "{} {}: the directory holds {} files and {} files, perhaps the same records twice; name those that are meant: "
          "\"{}/*{}\"",
          option, printable_path(directory), kind_of(files.front()), kind_of(file), printable_path(directory),
          file.extension().string());
}

// All data files of the directory itself; none is possible.
Files data_files_in(const fs::path& directory, std::string_view option) {
  Files files;
  for (const fs::path& entry : entries_of(directory))
    if (!kind_of(entry).empty() && is_regular_path(entry)) files.push_back(entry);
  require_one_kind(files, directory, option);
  return files;
}

// Those whose names are for this use; none is possible.
Files files_for(DataUse use, const Files& files) {
  Files training, validation, test, unnamed;
  for (const fs::path& file : files) {
    const Purpose purpose = purpose_of(file.filename().string());
    if (purpose.training) training.push_back(file);
    if (purpose.validation) validation.push_back(file);
    if (purpose.test) test.push_back(file);
    if (!purpose.any()) unnamed.push_back(file);
  }
  if (use == DataUse::training) return training.empty() ? unnamed : training;
  if (!validation.empty()) return validation;
  if (!test.empty()) return test;
  return unnamed.empty() ? training : unnamed;
}

Files chosen_by_name(const Files& files, const fs::path& directory, std::string_view option, DataUse use) {
  Splits splits;
  for (const fs::path& file : files)
    if (const auto split = split_of(file)) splits[*split].push_back(file);
  std::size_t of_splits = 0;
  std::set<std::string> names;
  for (const auto& [name, of_split] : splits) {
    names.insert(name);
    of_splits += of_split.size();
  }
  if (of_splits == files.size()) {
    return splits.at(choose_split(names, directory, option, use, [&](const std::string& split) {
      return fmt::format("\"{}/{}*{}\"", printable_path(directory), split, files.front().extension().string());
    }));
  }
  Files chosen = files_for(use, files);
  if (chosen.empty())
    fail("{} {}: by their names all files are for evaluation ({} is one); name those that are to be trained on", option,
         printable_path(directory), printable_path(files.front().filename()));
  return chosen;
}

void append(Files& files, const Files& more) { files.insert(files.end(), more.begin(), more.end()); }

// How the files of a config are named: by the directory that they lie in, if that says it.
std::string example_of(const CardConfig& config, const fs::path& directory) {
  if (config.splits.empty()) return printable_path(directory / config.directory);
  const fs::path pattern = fs::path(config.directory) / config.splits.front().second.front();
  const std::string name = pattern.filename().string();
  // What stands before the numbers of "train-*" is the split, and all of the directory's splits are the config's.
  const bool names_a_split = names_split(name.substr(0, name.find_first_of("-*.?[")));
  if (pattern.has_parent_path() && names_a_split) return printable_path(directory / pattern.parent_path());
  return fmt::format("\"{}\"", printable_path(directory / pattern));
}

// The one config that is meant, if the data set's card speaks of any.
std::optional<CardConfig> meant_config(const fs::path& directory, std::string_view option) {
  std::vector<CardConfig> configs = card_configs(directory);
  if (configs.empty()) return std::nullopt;
  if (configs.size() == 1) return configs.front();
  for (const auto& is_meant : {+[](const CardConfig& config) { return config.is_default; },
                               +[](const CardConfig& config) { return config.name == "default"; }})
    if (const auto found = std::find_if(configs.begin(), configs.end(), is_meant); found != configs.end())
      return *found;
  constexpr std::size_t most = 12;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(most, configs.size()); ++i) names.push_back(printable(configs[i].name));
  fail("{} {}: README.md says that the data set has several configs and no default: {}{}; name the files of one, as {}",
       option, printable_path(directory), fmt::join(names, ", "),
       configs.size() > most ? fmt::format(" and {} more", configs.size() - most) : "",
       example_of(configs.front(), directory));
}

Files files_of_config(const CardConfig& config, const fs::path& directory, std::string_view option, DataUse use,
                      Files* left_out) {
  const fs::path root = directory / config.directory;
  if (config.splits.empty()) return files_of_directory(root, option, use, left_out);
  std::map<std::string, std::vector<std::string>> patterns;
  std::set<std::string> names;
  for (const auto& [split, more] : config.splits) {
    names.insert(split);
    patterns[split].insert(patterns[split].end(), more.begin(), more.end());
  }
  const std::string chosen = choose_split(names, directory, option, use, [&](const std::string& split) {
    return fmt::format("\"{}\"", printable_path(root / patterns.at(split).front()));
  });
  const std::vector<std::string> all = tree_files(root);
  const auto files_of_pattern = [&](const std::string& pattern, Files& files) {
    std::size_t found = 0;
    for (const std::string& name : all) {
      if (!card_pattern_matches(pattern, name)) continue;
      ++found;
      if (std::find(files.begin(), files.end(), root / name) == files.end()) files.push_back(root / name);
    }
    return found;
  };
  const std::string card = printable_path(directory / "README.md");
  Files files, others;
  for (const std::string& pattern : patterns.at(chosen))
    if (files_of_pattern(pattern, files) == 0)
      fail("{} {}: {} names {}, which no file here is; is the copy whole?", option, printable_path(directory), card,
           printable(pattern));
  for (const fs::path& file : files)
    if (kind_of(file).empty())
      fail("{} {}: {} names {}, which is none of .json, .jsonl, .parquet and .arrow", option, printable_path(directory),
           card, printable_path(file));
  require_one_kind(files, root, option);
  for (const auto& [split, others_patterns] : patterns)
    for (const std::string& pattern : others_patterns)
      if (split != chosen) files_of_pattern(pattern, others);
  if (left_out != nullptr) append(*left_out, others);
  return files;
}

// Directories below that have data files; as the hub has data/, or one for each split.
Files files_below(const fs::path& directory, std::string_view option, DataUse use, Files& left_out) {
  Files below;
  std::set<std::string> names;
  bool derived = false;
  for (const fs::path& entry : entries_of(directory)) {
    const std::string name = entry.filename().string();
    derived = derived || is_cache_of_datasets(name);
    if (name.starts_with(".") || !is_directory_path(entry) || data_files_in(entry, option).empty()) continue;
    below.push_back(entry);
    names.insert(name);
  }
  if (names.contains("data")) return files_of_directory(directory / "data", option, use, &left_out);
  Files chosen;
  if (!below.empty() && std::all_of(names.begin(), names.end(), names_split))
    chosen.push_back(directory / choose_directory(names, directory, option, use));
  else if (std::any_of(names.begin(), names.end(), [](const std::string& name) { return purpose_of(name).any(); }))
    for (const fs::path& one : files_for(use, below))
      if (purpose_of(one.filename().string()).any()) chosen.push_back(one);
  if (chosen.empty())
    fail("{} {}: the directory holds no .json, .jsonl, .parquet or .arrow file{}{}", option, printable_path(directory),
         derived ? " but cache-*.arrow, which datasets derives from others" : "",
         below.empty() ? "" : fmt::format("; directories in it do, name one of them: {}", fmt::join(names, ", ")));
  for (const fs::path& one : below)
    if (std::find(chosen.begin(), chosen.end(), one) == chosen.end()) left_out.push_back(one);
  Files files;
  for (const fs::path& one : chosen) append(files, files_of_directory(one, option, use, &left_out));
  return files;
}

}  // namespace

bool is_for_evaluation(std::string_view name) {
  const Purpose purpose = purpose_of(name);
  return !purpose.training && purpose.any();
}

std::vector<fs::path> files_of_directory(const fs::path& directory, std::string_view option, DataUse use,
                                         std::vector<fs::path>* left_out) {
  if (path_exists(directory / "dataset_dict.json")) return files_of_saved(split_of_saved(directory, option, use));
  if (path_exists(directory / "state.json") && path_exists(directory / "dataset_info.json"))
    return files_of_saved(directory);
  if (const auto config = meant_config(directory, option);
      config && !(config->splits.empty() && config->directory.empty()))
    return files_of_config(*config, directory, option, use, left_out);
  const Files files = data_files_in(directory, option);
  Files others;
  const Files chosen =
      files.empty() ? files_below(directory, option, use, others) : chosen_by_name(files, directory, option, use);
  for (const fs::path& file : files)
    if (std::find(chosen.begin(), chosen.end(), file) == chosen.end()) others.push_back(file);
  if (!files.empty())
    for (const fs::path& entry : entries_of(directory))
      if (is_cache_of_datasets(entry.filename().string())) others.push_back(entry);
  if (left_out != nullptr) append(*left_out, others);
  return chosen;
}

}  // namespace so
