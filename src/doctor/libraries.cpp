#include "doctor/libraries.h"

#include <fmt/format.h>

#include <utility>

#include "base/shared_library.h"

namespace so {
namespace {

// `thousands`: whether the major version counts by 10,000, else by 1,000.
std::string version_text(std::size_t number, bool thousands) {
  const std::size_t major = thousands ? 10000 : 1000;
  return fmt::format("{}.{}.{}", number / major, number % major / 100, number % 100);
}

// A library whose version function returns the number.
Library ask_by_value(const char* check, const char* name, const std::vector<std::string>& files, const char* function) {
  const SharedLibrary loaded = load_library(files);
  Library library{.check = check, .name = name, .reason = loaded.reason};
  if (loaded.handle == nullptr) return library;
  std::size_t (*version)() = nullptr;
  SymbolFinder{loaded}(version, function);
  const std::size_t number = version != nullptr ? version() : 0;
  // cuBLAS 12 counts 120,802 for 12.8.2, as cuDNN 9 counts 91,900 for 9.19.0; cuDNN 8 counted 8,905 for 8.9.5.
  library.version = number == 0 ? "of an unknown version" : version_text(number, number >= 10000);
  return library;
}

}  // namespace

std::vector<Library> ask_libraries() {
  std::vector<std::string> cublas = nvidia_files("libcublasLt.so.13", "cu13");
  cublas.emplace_back("libcublasLt.so.12");
  std::vector<Library> libraries;
  libraries.push_back(ask_by_value("cublaslt", "cuBLASLt", cublas, "cublasLtGetVersion"));
  libraries.push_back(ask_by_value("cudnn", "cuDNN", nvidia_files("libcudnn.so.9", "cudnn"), "cudnnGetVersion"));
  const SharedLibrary loaded = load_library(nvidia_files("libnccl.so.2", "nccl"));
  Library nccl{.check = "nccl", .name = "NCCL", .reason = loaded.reason};
  if (loaded.handle != nullptr) {
    int (*version)(int*) = nullptr;
    SymbolFinder{loaded}(version, "ncclGetVersion");
    int number = 0;
    nccl.version = version == nullptr || version(&number) != 0 || number <= 0
                       ? "of an unknown version"
                       : version_text(static_cast<std::size_t>(number), number >= 10000);
  }
  libraries.push_back(std::move(nccl));
  return libraries;
}

}  // namespace so
