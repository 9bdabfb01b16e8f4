// Between adamw.cpp, which checks and splits, and adamw_kernels.cpp, which computes. Not for other rooms.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "optim/adamw.h"

namespace so::adamw {

// One contiguous piece. The pointers may have any alignment, but where stores stream, output + head is on a 64-byte
// boundary for each output array.
struct Piece {
  AdamWStep step;  // with decay already 0 where it does not apply
  const void* gradient;
  AdamWStateView in;
  AdamWState out;  // null in a preview
  void* weights;   // null if none
  std::size_t count;
  std::size_t head;      // elements before the aligned body; at most count
  std::size_t prefetch;  // AdamWTuning's
};

enum Gradients { kGradientsF32, kGradientsBf16, kGradientKinds };
enum MomentKinds { kMomentsF32, kMomentsBf16, kMomentsU8, kMomentKinds };
enum Weights { kNoWeights, kWeightsF32, kWeightsBf16, kWeightKinds };
enum Outputs { kStateAndWeights, kWeightsOnly, kOutputKinds };  // an update, a preview
enum Stores { kCached, kStreamWeights, kStreamAll, kStoreKinds };

using Kernel = void (*)(const Piece&);

// The kernels of one instruction set; null for a preview without weights, which would do nothing.
struct KernelTable {
  using Row = Kernel[kStoreKinds];

  std::string name;
  std::size_t lanes = 1;  // fp32 numbers a vector
  Row kernel[kOutputKinds][kMomentKinds][kGradientKinds][kWeightKinds] = {};
};

// The instruction sets this machine can run, best first, the scalar code last. Constant after the first call.
const std::vector<KernelTable>& kernel_tables();

}  // namespace so::adamw
