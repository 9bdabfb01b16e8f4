#include "data/dataset_card.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/terminal.h"
#include "io/yaml_document.h"

namespace so {
namespace {

namespace fs = std::filesystem;

// The YAML between the lines; none if the file does not begin so.
std::optional<std::string> front_matter(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos || !text.substr(begin).starts_with("---")) return std::nullopt;
  const std::size_t first = text.find('\n', begin);
  if (first == text.npos || text.substr(begin, first - begin).find_last_not_of("-\r") != text.npos) return std::nullopt;
  for (std::size_t at = first + 1; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line == "---") return "\n" + std::string(text.substr(first + 1, at - first - 1));  // for numbers of lines
    at = end + 1;
  }
  return std::nullopt;
}

class CardReader {
 public:
  CardReader(const YamlDocument& document, std::string name) : document_(document), name_(std::move(name)) {}

  std::vector<CardConfig> configs() const {
    std::vector<CardConfig> all;
    if (document_.is_empty) return all;
    const YamlNode* list = value(document_.at(document_.root), "configs");
    if (list == nullptr) return all;
    if (list->kind != YamlNode::Kind::list) refuse("configs is no list");
    for (const YamlUse entry : list->children) all.push_back(config(document_.at(entry)));
    return all;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    fail("{}: {}, so it cannot be told which files are meant; name them", name_, what);
  }

  const YamlNode* value(const YamlNode& mapping, std::string_view key) const {
    if (mapping.kind != YamlNode::Kind::mapping) refuse("a value stands where a mapping should");
    for (std::size_t i = 0; i + 1 < mapping.children.size(); i += 2)
      if (document_.at(mapping.children[i]).text == key) return &document_.at(mapping.children[i + 1]);
    return nullptr;
  }
  std::string text(const YamlNode& node) const {
    if (node.kind != YamlNode::Kind::scalar) refuse("a list or a mapping stands where a text should");
    return node.text;
  }
  std::string text(const YamlNode& mapping, std::string_view key, std::string_view fallback) const {
    const YamlNode* node = value(mapping, key);
    return node == nullptr ? std::string(fallback) : text(*node);
  }

  // Of this data set's own directory, as everything else here.
  std::string inner_path(std::string path) const {
    while (path.starts_with("./")) path.erase(0, 2);
    while (path.ends_with("/")) path.pop_back();
    if (path == ".") path.clear();
    for (const fs::path& part : fs::path(path))
      if (part == "..") refuse(fmt::format("\"{}\" leads out of the directory", printable(path)));
    if (path.starts_with("/") || path.find("://") != path.npos)
      refuse(fmt::format("\"{}\" is no file of the directory", printable(path)));
    return path;
  }
  std::vector<std::string> patterns(const YamlNode& node) const {
    std::vector<std::string> all;
    if (node.kind == YamlNode::Kind::list)
      for (const YamlUse item : node.children) all.push_back(inner_path(text(document_.at(item))));
    else
      all.push_back(inner_path(text(node)));
    return all;
  }

  CardConfig config(const YamlNode& node) const {
    CardConfig config{.name = text(node, "config_name", "default")};
    const std::string is_default = text(node, "default", "false");
    config.is_default = is_default == "true" || is_default == "True" || is_default == "TRUE";
    config.directory = inner_path(text(node, "data_dir", ""));
    const YamlNode* files = value(node, "data_files");
    if (files == nullptr) return config;
    const bool has_splits = files->kind == YamlNode::Kind::list && !files->children.empty() &&
                            document_.at(files->children.front()).kind == YamlNode::Kind::mapping;
    if (!has_splits) {
      config.splits.emplace_back("train", patterns(*files));
      return config;
    }
    for (const YamlUse entry : files->children) {
      const YamlNode& split = document_.at(entry);
      const YamlNode* path = value(split, "path");
      if (path == nullptr) refuse("a split has no path");
      config.splits.emplace_back(text(split, "split", "train"), patterns(*path));
    }
    return config;
  }

  const YamlDocument& document_;
  const std::string name_;
};

bool parts_match(fs::path::iterator pattern, fs::path::iterator pattern_end, fs::path::iterator file,
                 fs::path::iterator file_end) {
  while (pattern != pattern_end && *pattern != "**") {
    if (file == file_end || ::fnmatch(pattern->c_str(), file->c_str(), FNM_PERIOD) != 0) return false;
    ++pattern;
    ++file;
  }
  if (pattern == pattern_end) return file == file_end;
  const auto after = std::next(pattern);
  if (after == pattern_end) return file != file_end;
  for (;; ++file) {
    if (parts_match(after, pattern_end, file, file_end)) return true;
    if (file == file_end) return false;
  }
}

}  // namespace

std::vector<CardConfig> card_configs(const fs::path& directory) {
  constexpr std::uint64_t most_bytes = 64 << 20;
  const fs::path card = directory / "README.md";
  if (!is_regular_path(card)) return {};
  const auto yaml = front_matter(read_text_file(card, most_bytes));
  // The rest of it may be as it likes.
  if (!yaml || yaml->find("\nconfigs:") == yaml->npos) return {};
  if (utf8_prefix(*yaml) < yaml->size())
    fail("{} is not UTF-8, so it cannot be told which of its configs is meant: name the files", printable_path(card));
  std::optional<YamlDocument> document;
  try {
    document = read_yaml(*yaml, printable_path(card));
  } catch (const Error& error) {
    fail("{}; so it cannot be told which of its configs is meant: name the files", error.what());
  }
  return CardReader(*document, printable_path(card)).configs();
}

bool card_pattern_matches(const std::string& pattern, const std::string& file) {
  const fs::path wanted = pattern, found = file;
  return parts_match(wanted.begin(), wanted.end(), found.begin(), found.end());
}

}  // namespace so
