#include "doctor/libraries.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <initializer_list>

namespace so {
namespace {

// The first of `files` that can be loaded; null, with the loader's reason.
void* load_any(std::initializer_list<const char*> files, std::string& reason) {
  for (const char* file : files) {
    if (void* library = dlopen(file, RTLD_LAZY | RTLD_LOCAL)) return library;
    const char* error = dlerror();
    if (reason.empty()) reason = error != nullptr ? error : "cannot be loaded";
  }
  return nullptr;
}

template <class Function>
Function function_of(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

// `thousands`: whether the major version counts by 10,000, else by 1,000.
std::string version_text(std::size_t number, bool thousands) {
  const std::size_t major = thousands ? 10000 : 1000;
  return fmt::format("{}.{}.{}", number / major, number % major / 100, number % 100);
}

// A library whose version function returns the number.
Library ask_by_value(const char* check, const char* name, std::initializer_list<const char*> files,
                     const char* function) {
  Library library{check, name};
  void* loaded = load_any(files, library.reason);
  if (loaded == nullptr) return library;
  const auto version = function_of<std::size_t (*)()>(loaded, function);
  const std::size_t number = version != nullptr ? version() : 0;
  // cuBLAS 12 counts 120,802 for 12.8.2, as cuDNN 9 counts 91,900 for 9.19.0; cuDNN 8 counted 8,905 for 8.9.5.
  library.version = number == 0 ? "of an unknown version" : version_text(number, number >= 10000);
  return library;
}

}  // namespace

std::vector<Library> ask_libraries() {
  std::vector<Library> libraries;
  libraries.push_back(
      ask_by_value("cublaslt", "cuBLASLt", {"libcublasLt.so.13", "libcublasLt.so.12"}, "cublasLtGetVersion"));
  libraries.push_back(ask_by_value("cudnn", "cuDNN", {"libcudnn.so.9"}, "cudnnGetVersion"));
  Library nccl{"nccl", "NCCL"};
  if (void* loaded = load_any({"libnccl.so.2"}, nccl.reason)) {
    const auto version = function_of<int (*)(int*)>(loaded, "ncclGetVersion");
    int number = 0;
    nccl.version = version == nullptr || version(&number) != 0 || number <= 0
                       ? "of an unknown version"
                       : version_text(static_cast<std::size_t>(number), number >= 10000);
  }
  libraries.push_back(std::move(nccl));
  return libraries;
}

}  // namespace so
