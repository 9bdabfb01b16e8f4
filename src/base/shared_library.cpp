#include "base/shared_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <system_error>

namespace so {

SharedLibrary load_library(std::span<const std::string> files, LibraryNames names) {
  SharedLibrary library;
  for (const std::string& file : files) {
    if (file.empty()) continue;
    library.handle = dlopen(file.c_str(), RTLD_NOW | (names == LibraryNames::global ? RTLD_GLOBAL : RTLD_LOCAL));
    if (library.handle != nullptr) return {library.handle, {}};
    const char* error = dlerror();
    if (library.reason.empty()) library.reason = error != nullptr ? error : "cannot be loaded";
  }
  return library;
}

void* find_symbol(const SharedLibrary& library, const char* name) { return dlsym(library.handle, name); }

std::vector<std::string> nvidia_files(std::string_view file, std::string_view folder, std::string_view built_with) {
  std::vector<std::string> files;
  std::error_code error;
  // site-packages/superoffload/bin/superoffload
  const std::filesystem::path bin = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  if (!error && bin.parent_path().filename() == "superoffload")
    files.push_back(fmt::format("{}/nvidia/{}/lib/{}", bin.parent_path().parent_path().string(), folder, file));
  files.emplace_back(file);
  files.emplace_back(built_with);
  return files;
}

}  // namespace so
