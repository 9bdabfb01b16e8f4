#include "device/cuda/cublas_lt.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/shared_library.h"

namespace so {
namespace {

struct Loaded {
  CublasLt functions;
  std::string reason;  // empty: all are there
};

Loaded load() {
  Loaded loaded;
  const std::string folder = CUBLAS_VER_MAJOR >= 13 ? fmt::format("cu{}", CUBLAS_VER_MAJOR) : "cublas";
  const SharedLibrary library =
      load_library(nvidia_files(fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR), folder, SO_CUBLASLT_LIBRARY));
  if (library.handle == nullptr) {
    loaded.reason = fmt::format(
        "cuBLASLt, a part of the CUDA toolkit, cannot be loaded ({}); install it (pip install 'superoffload[cuda]', "
        "where the program was installed by pip), add its directory to LD_LIBRARY_PATH, or use --device cpu",
        library.reason);
    return loaded;
  }
  SymbolFinder find(library);
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
  if (find.missing() != nullptr)
    loaded.reason = fmt::format("this cuBLASLt has no {}; the program was built for version {}.{}", find.missing(),
                                CUBLAS_VER_MAJOR, CUBLAS_VER_MINOR);
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
