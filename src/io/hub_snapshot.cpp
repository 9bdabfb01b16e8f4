#include "io/hub_snapshot.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/json_tree.h"
#include "io/contained_files.h"
#include "io/hf_directory.h"
#include "io/tree_files.h"

namespace so {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view single_weights = "model.safetensors", weights_index = "model.safetensors.index.json";

// What the client has written down of the commit's files; nothing where it has not, or not in a form that is known. The
// client takes a damaged list for none, too.
std::optional<std::set<std::string>> listed_files(const HubSnapshot& snapshot) {
  constexpr std::uint64_t most_bytes = 256 << 20;
  const fs::path file = snapshot.repository / "trees" / (snapshot.commit + ".json");
  if (!path_exists(file)) return std::nullopt;
  const nlohmann::json tree = json_tree(read_text_file(file, most_bytes));
  if (!tree.is_object() || tree.value("format_version", nlohmann::json()) != nlohmann::json(1)) return std::nullopt;
  const auto files = tree.find("files");
  if (files == tree.end() || !files->is_object()) return std::nullopt;
  std::set<std::string> names;
  for (const auto& entry : files->items()) names.insert(entry.key());
  return names;
}

class SnapshotFiles {
 public:
  explicit SnapshotFiles(const HubSnapshot& snapshot) : snapshot_(snapshot), listed_(listed_files(snapshot)) {}

  // A link whose blob is not there yet is no file.
  bool has(std::string_view name) const { return is_regular_path(snapshot_.directory / name); }
  // Whether the commit is known to have such a file, or not to have one; mostly neither is known.
  bool is_listed(std::string_view name) const { return listed_ && listed_->contains(std::string(name)); }
  bool is_absent(std::string_view name) const {
    if (listed_) return !is_listed(name);
    return path_exists(snapshot_.repository / ".no_exist" / snapshot_.commit / name);
  }
  const std::optional<std::set<std::string>>& listed() const { return listed_; }
  const fs::path& directory() const { return snapshot_.directory; }

 private:
  const HubSnapshot& snapshot_;
  const std::optional<std::set<std::string>> listed_;
};

// Other weights than safetensors, which are refused with a reason of their own.
bool has_foreign_weights(const fs::path& directory) {
  for (const fs::path& entry : entries_of(directory)) {
    const std::string name = entry.filename().string();
    if (name.starts_with("adapter_") || (name.starts_with("pytorch_model") && name.find(".bin") != name.npos))
      return true;
  }
  return false;
}

std::string missing_weights(const SnapshotFiles& files) {
  if (files.has(single_weights)) return {};
  if (files.has(weights_index)) {
    const ContainedFiles opened(files.directory());
    constexpr std::uint64_t most_bytes = 100'000'000;
    std::set<std::string> missing;
    const std::string source = printable_path(files.directory() / weights_index);
    for (const auto& [tensor, shard] :
         parse_safetensors_index(text_of(opened.open(std::string(weights_index)), most_bytes), source))
      if (!files.has(shard)) missing.insert(shard);
    return missing.empty() ? "" : *missing.begin();
  }
  if (files.is_absent(single_weights) && files.is_absent(weights_index)) return {};
  if (has_foreign_weights(files.directory())) return {};
  for (const std::string_view name : {single_weights, weights_index})
    if (files.is_listed(name)) return std::string(name);
  return "its weights";
}

std::string missing_of_model(const SnapshotFiles& files, HubUse use) {
  if (!files.has("config.json") && !files.is_absent("config.json")) return "config.json";
  if (use == HubUse::config) return {};
  for (const std::string_view name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                      "generation_config.json", "chat_template.jinja"})
    if (files.is_listed(name) && !files.has(name)) return std::string(name);
  return use == HubUse::weights ? missing_weights(files) : std::string();
}

bool is_inside(const std::string& name, const std::string& inside) {
  return inside.empty() || name == inside || name.starts_with(inside + "/") ||
         ::fnmatch(inside.c_str(), name.c_str(), FNM_PATHNAME) == 0;
}

// "data/train-00001-of-00004-1a2b.parquet" as what stands before its number, the number, and how many there are.
struct Numbered {
  std::string before, of, ending;
  std::size_t number = 0, count = 0;
};
std::optional<Numbered> numbered(const std::string& name) {
  constexpr std::size_t most_digits = 6;
  const std::size_t of = name.rfind("-of-");
  if (of == name.npos) return std::nullopt;
  const std::size_t dash = name.rfind('-', of - 1);
  if (of == 0 || dash == name.npos) return std::nullopt;
  const std::size_t end = std::min(name.find_first_not_of("0123456789", of + 4), name.size());
  const std::string number = name.substr(dash + 1, of - dash - 1), count = name.substr(of + 4, end - of - 4);
  for (const std::string& digits : {number, count})
    if (digits.empty() || digits.size() > most_digits || digits.find_first_not_of("0123456789") != digits.npos)
      return std::nullopt;
  return Numbered{name.substr(0, dash), count, name.substr(std::min(name.rfind('.'), name.size())), std::stoul(number),
                  std::stoul(count)};
}

// Files that say how many of them there are.
std::string missing_of_numbered(const std::vector<std::string>& names) {
  std::map<std::string, std::set<std::size_t>> found;
  std::map<std::string, Numbered> group;
  for (const std::string& name : names)
    if (const auto part = numbered(name)) {
      const std::string key = part->before + "/" + part->of + part->ending;
      found[key].insert(part->number);
      group.emplace(key, *part);
    }
  for (const auto& [key, part] : group)
    for (std::size_t i = 0; i < part.count; ++i)
      if (!found.at(key).contains(i))
        return fmt::format("{}-{:0{}}-of-{}{}", part.before, i, part.of.size(), part.of, part.ending);
  return {};
}

std::string missing_of_dataset(const SnapshotFiles& files, const std::string& inside) {
  if (const auto& listed = files.listed()) {
    for (const std::string& name : *listed)
      if (is_data_name(name) && is_inside(name, inside) && !files.has(name)) return name;
    return {};
  }
  const std::vector<std::string> names = tree_files(files.directory());
  std::vector<std::string> meant;
  std::copy_if(names.begin(), names.end(), std::back_inserter(meant),
               [&](const std::string& name) { return is_inside(name, inside); });
  if (meant.empty() && !inside.empty()) return inside;
  // A few files may have been asked for alone: the card, by who wanted to read it.
  if (std::all_of(names.begin(), names.end(), [](const std::string& name) { return name.ends_with(".md"); }))
    return "its data";
  return missing_of_numbered(meant);
}

}  // namespace

std::string missing_of(const HubSnapshot& snapshot, HubUse use, const std::string& inside) {
  const SnapshotFiles files(snapshot);
  return use == HubUse::data ? missing_of_dataset(files, inside) : missing_of_model(files, use);
}

bool has_unfinished_files(const HubSnapshot& snapshot) {
  const fs::path blobs = snapshot.repository / "blobs";
  if (!is_directory_path(blobs)) return false;
  for (const fs::path& entry : entries_of(blobs)) {
    const std::string name = entry.filename().string();
    // "HASH.incomplete", or with something more between. Where HASH is there, another download has finished it.
    if (name.ends_with(".incomplete") && !path_exists(blobs / name.substr(0, name.find('.')))) return true;
  }
  return false;
}

}  // namespace so
