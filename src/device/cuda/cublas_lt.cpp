#include "device/cuda/cublas_lt.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

#include "base/error.h"

namespace so {
namespace {

struct Loaded {
  CublasLt functions;
  std::string reason;  // empty: all are there
};

Loaded load() {
  Loaded loaded;
  // First the loader's own search, then where the build found it.
  const std::array<std::string, 2> names = {fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR), SO_CUBLASLT_LIBRARY};
  void* library = nullptr;
  for (const std::string& name : names) {
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    if (loaded.reason.empty())
      loaded.reason = fmt::format(
          "cuBLASLt, a part of the CUDA toolkit, cannot be loaded ({}); install it, add its directory to "
          "LD_LIBRARY_PATH, or use --device cpu",
          dlerror());
  }
  if (library == nullptr) return loaded;
  loaded.reason.clear();
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr && loaded.reason.empty())
      loaded.reason = fmt::format("this cuBLASLt has no {}; the program was built for version {}.{}", name,
                                  CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR);
  };
  CublasLt& f = loaded.functions;
  find(f.create, "cublasLtCreate");
  find(f.destroy, "cublasLtDestroy");
  find(f.status_string, "cublasLtGetStatusString");
  find(f.matmul, "cublasLtMatmul");
  find(f.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(f.operation_create, "cublasLtMatmulDescCreate");
  find(f.operation_destroy, "cublasLtMatmulDescDestroy");
  find(f.operation_set, "cublasLtMatmulDescSetAttribute");
  find(f.layout_create, "cublasLtMatrixLayoutCreate");
  find(f.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(f.preference_create, "cublasLtMatmulPreferenceCreate");
  find(f.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(f.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  return loaded;
}

}  // namespace

const CublasLt* find_cublas_lt(std::string& reason) {
  static const Loaded loaded = load();
  reason = loaded.reason;
  return reason.empty() ? &loaded.functions : nullptr;
}

const CublasLt& cublas_lt() {
  static const CublasLt& functions = [&]() -> const CublasLt& {
    std::string reason;
    const CublasLt* found = find_cublas_lt(reason);
    if (found == nullptr) fail("{}", reason);
    return *found;
  }();
  return functions;
}

}  // namespace so
