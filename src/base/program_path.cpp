#include "base/program_path.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>

namespace so {
namespace {

namespace fs = std::filesystem;

struct DirectoryList {
  std::string_view name, separators;
};
constexpr DirectoryList programs{"PATH=", ":"}, libraries{"LD_LIBRARY_PATH=", ":;"};

}  // namespace

std::string absolute_entries(std::string_view list, std::string_view separators) {
  std::string kept;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find_first_of(separators), list.size());
    if (list.starts_with('/') || list.starts_with("$ORIGIN") || list.starts_with("${ORIGIN}")) {
      if (!kept.empty()) kept += ':';
      kept += list.substr(0, end);
    }
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return kept;
}

std::optional<fs::path> find_program(std::string_view name) {
  const auto runs = [](const fs::path& program) {
    std::error_code error;
    return program.is_absolute() && fs::is_regular_file(program, error) && ::access(program.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string_view::npos) return runs(name) ? std::optional<fs::path>(name) : std::nullopt;
  const char* path = std::getenv("PATH");
  // Without PATH, what a shell assumes.
  const std::string entries =
      absolute_entries(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin", programs.separators);
  for (std::string_view rest = entries; !rest.empty();) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    const fs::path program = fs::path(rest.substr(0, end)) / name;
    if (runs(program)) return program;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return std::nullopt;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::string shell_word(const std::string& text) {
  constexpr std::string_view plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+./,:=@%";
  if (!text.empty() && text.find_first_not_of(plain) == std::string::npos) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

std::vector<std::string> environment_of_programs() {
  std::vector<std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    std::string& variable = variables.emplace_back(*entry);
    for (const DirectoryList& list : {programs, libraries}) {
      if (!variable.starts_with(list.name)) continue;
      variable.replace(list.name.size(), std::string::npos,
                       absolute_entries(std::string_view(*entry).substr(list.name.size()), list.separators));
    }
  }
  // An empty LD_LIBRARY_PATH is none, but an empty PATH is the working directory to some.
  std::erase_if(variables, [](const std::string& v) { return v == programs.name || v == libraries.name; });
  return variables;
}

void leave_libraries_of_working_directory(char** arguments) {
  const char* list = std::getenv("LD_LIBRARY_PATH");
  if (list == nullptr || *list == '\0' || absolute_entries(list, libraries.separators) == list) return;
  std::vector<std::string> variables = environment_of_programs();
  ::execve("/proc/self/exe", arguments, pointers_to(variables).data());
}

}  // namespace so
