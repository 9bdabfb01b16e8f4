#include "io/tree_files.h"

#include <algorithm>
#include <iterator>

#include "base/file_system.h"

namespace so {
namespace {

void collect_files(const std::filesystem::path& directory, const std::string& prefix, std::vector<std::string>& names) {
  for (const std::filesystem::path& entry : entries_of(directory)) {
    const std::string name = entry.filename().string();
    if (name.starts_with(".")) continue;
    if (!is_link_path(entry) && is_directory_path(entry))
      collect_files(entry, prefix + name + "/", names);
    else if (is_regular_path(entry))
      names.push_back(prefix + name);
  }
}

}  // namespace

bool is_data_name(std::string_view name) {
  constexpr std::string_view endings[] = {".json", ".jsonl", ".parquet", ".arrow"};
  return std::any_of(std::begin(endings), std::end(endings), [&](std::string_view end) { return name.ends_with(end); });
}

std::vector<std::string> tree_files(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  collect_files(directory, "", names);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace so
