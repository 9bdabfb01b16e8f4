// Libraries that the program loads when it needs them: it starts where they are missing, and finds them where Python
// packages put them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace so {

struct SharedLibrary {
  void* handle = nullptr;  // as dlopen() gives it; it stays loaded
  std::string reason;      // where there is none: what the loader said of the first file
};

// Whether other libraries of the process find its names, as plug-ins of its own may have to.
enum class LibraryNames : bool { local, global };

// The first of `files` that can be loaded. A name without a slash is searched for by the loader, which also finds what
// the process has loaded already; empty ones are passed over.
SharedLibrary load_library(std::span<const std::string> files, LibraryNames names = LibraryNames::local);

// Where a library of NVIDIA's may be, in this order: in NVIDIA's Python packages beside this program's own
// (site-packages/nvidia/...), which were installed for it, where the loader searches, which may find an older one of
// the system's, and at `built_with`, where the build found it. `folder` is that of its package, with "cu" and the
// number for packages of CUDA 13 and later ("cu13"; "cudnn", "nccl").
std::vector<std::string> nvidia_files(std::string_view file, std::string_view folder, std::string_view built_with = {});

// The function or variable of that name, null if the library has none.
void* find_symbol(const SharedLibrary& library, const char* name);

// Finds a library's functions and variables by name, one after the other, and keeps the first name that it lacks.
class SymbolFinder {
 public:
  explicit SymbolFinder(const SharedLibrary& library) : library_(library) {}
  template <class Pointer>
  void operator()(Pointer& pointer, const char* name) {
    pointer = reinterpret_cast<Pointer>(find_symbol(library_, name));
    if (pointer == nullptr && missing_ == nullptr) missing_ = name;
  }
  const char* missing() const { return missing_; }  // null: it has all

 private:
  const SharedLibrary& library_;
  const char* missing_ = nullptr;
};

}  // namespace so
