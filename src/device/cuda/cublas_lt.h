// cuBLASLt's functions. The program does not link the library but loads it when a GPU is about to be used: its 150 MB
// and the 0.1 s that the loader spends on its relocations are left to runs that multiply with it.
#pragma once

#include <cublasLt.h>

#include <string>

namespace so {

struct CublasLt {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetStatusString) status_string = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) operation_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) operation_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) operation_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
};

// Loads the library once, from any thread, and keeps it. Null, with the reason, if it cannot be loaded or lacks a
// function.
const CublasLt* find_cublas_lt(std::string& reason);

// The same, where find_cuda() has found that it is there; throws Error otherwise.
const CublasLt& cublas_lt();

}  // namespace so
