// What the README.md of a data set of the Hugging Face hub, its card, says about its files: YAML at its beginning,
// between two lines "---".
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace so {

// One of several selections of the data set's files (a "config" of load_dataset).
struct CardConfig {
  std::string name;
  bool is_default = false;
  std::string directory;  // in the data set, in which its files lie; empty: itself
  // Splits with patterns of files, relative to that directory; none: names say which files belong to which split.
  std::vector<std::pair<std::string, std::vector<std::string>>> splits;
};

// Those of DIRECTORY/README.md; none where it has no such file, or the file says nothing of them. Throws Error for what
// cannot be read, and for files that lie elsewhere.
std::vector<CardConfig> card_configs(const std::filesystem::path& directory);

// Whether a pattern of a card is for a file: "**" stands for directories, as many as there are, and *, ?, [a-z] are of
// one name.
bool card_pattern_matches(const std::string& pattern, const std::string& file);

}  // namespace so
