#include "data/data_files.h"

#include <fmt/ranges.h>
#include <glob.h>

#include <algorithm>
#include <set>
#include <string>
#include <system_error>

#include "base/comma_list.h"
#include "base/error.h"
#include "base/file.h"
#include "base/file_system.h"
#include "base/log.h"

namespace so {
namespace {

namespace fs = std::filesystem;

DataPart files_of_pattern(const std::string& pattern, std::string_view option) {
  ::glob_t found{};
  const int result = ::glob(pattern.c_str(), 0, nullptr, &found);
  DataPart files;
  if (result == 0)
    for (std::size_t i = 0; i < found.gl_pathc; ++i)
      if (is_regular_path(found.gl_pathv[i])) files.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  if (files.empty()) fail("{} {}: no file has such a name", option, printable(pattern));
  std::sort(files.begin(), files.end());
  return files;
}

std::string names_of(const DataPart& files) {
  constexpr std::size_t most = 8;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(most, files.size()); ++i) {
    const fs::path& file = files[i];
    names.push_back(printable_path(file.has_filename() ? file.filename() : file));
  }
  return fmt::format("{}{}", fmt::join(names, ", "),
                     files.size() > most ? fmt::format(" and {} more", files.size() - most) : "");
}

// A pattern takes in what it names; who did not think of files for evaluation is told.
void tell_of_pattern(const std::string& pattern, const DataPart& files, std::string_view option) {
  if (is_for_evaluation(fs::path(pattern).filename().string())) return;
  DataPart meant;
  for (const fs::path& file : files)
    if (is_for_evaluation(file.filename().string())) meant.push_back(file);
  if (!meant.empty() && meant.size() < files.size())
    log_warning("{} {}: the pattern takes in files whose names say that they are for evaluation: {}", option,
                printable(pattern), names_of(meant));
}

DataPart files_of(const std::string& part, std::string_view option, DataUse use, Telling telling) {
  if (part.empty()) fail("{}: a name is missing beside a comma", option);
  if (is_directory_path(part)) {
    DataPart left_out;
    const DataPart files = files_of_directory(part, option, use, &left_out);
    if (telling == Telling::log && !left_out.empty())
      log_info("{} {}: takes {}; leaves out {}", option, printable(part), names_of(files), names_of(left_out));
    return files;
  }
  if (!path_exists(part) && part.find_first_of("*?[") != std::string::npos) {
    const DataPart files = files_of_pattern(part, option);
    if (telling == Telling::log && use == DataUse::training) tell_of_pattern(part, files, option);
    return files;
  }
  return {part};
}

}  // namespace

std::vector<DataPart> data_files(std::string_view text, std::string_view option, DataUse use, Telling telling) {
  std::vector<std::string> names;
  if (path_exists(fs::path(text))) {
    names.emplace_back(text);
  } else {
    for (const std::string_view name : between_commas(text)) names.emplace_back(name);
  }
  std::vector<DataPart> parts;
  std::set<fs::path> seen;
  for (const std::string& name : names) {
    parts.push_back(files_of(name, option, use, telling));
    for (const fs::path& file : parts.back()) {
      std::error_code error;
      const fs::path real = fs::canonical(file, error);
      if (!error && !seen.insert(real).second) fail("{} names {} twice", option, printable_path(file));
    }
  }
  return parts;
}

DataPart all_files(const std::vector<DataPart>& parts) {
  DataPart all;
  for (const DataPart& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace so
