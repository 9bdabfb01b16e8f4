// The parts that this program was built with, as it names them to its users.
#pragma once

#include <string>

namespace so {

// "with CUDA 13.0 (sm_80, sm_90, compute_90), cuDNN, NCCL, Open MPI, oneDNN", or what it is without, and why: "without
// CUDA (nvcc was not found)". No line breaks.
std::string build_text();
// Why it has no CUDA backend; empty if it has one.
std::string why_built_without_cuda();

}  // namespace so
