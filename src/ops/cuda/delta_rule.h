// The kernels of the gated delta rule. Two sets: in chunks on Hopper's matrix units (hopper/), for bf16 heads of 128
// whose rows can be read 16 bytes at a time, and token by token in fp32 arithmetic for all else. Both keep states in
// fp32, add in a fixed order, and do a document as if it were alone. [Gated DeltaNet, Yang et al. 2024]
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/head_rows.h"
#include "ops/delta_memory.h"
#include "ops/ops.h"

namespace so {

struct DeltaArguments {
  HeadRows out, q, k, v;
  HeadRows dout, dq, dk, dv;  // backward
  const float *decay = nullptr, *rate = nullptr;
  float *ddecay = nullptr, *drate = nullptr;
  float* state = nullptr;  // null: none
  const std::int32_t* starts = nullptr;
  std::int64_t rows = 0;
  std::int64_t gate_width = 0;  // of a row of decay, rate and their gradients
  int documents = 0, k_heads = 0, v_heads = 0, k_dim = 0, v_dim = 0;
  char* scratch = nullptr;  // as ChunkedDeltaScratch or PlainDeltaScratch lays it out
};

// Added to a query's or key's sum of squares.
inline constexpr float delta_norm_epsilon = 1e-6f;

// On GPUs of capability 9.0.
void hopper_delta_rule(cudaStream_t stream, const DeltaArguments& a, const DeltaSize& size);
void hopper_delta_rule_grad(cudaStream_t stream, const DeltaArguments& a, const DeltaSize& size);

// Heads of at most this size: a state lies in shared memory.
inline constexpr int plain_delta_head_dim = 128;
void plain_delta_rule(cudaStream_t stream, DType dtype, const DeltaArguments& a);
void plain_delta_rule_grad(cudaStream_t stream, DType dtype, const DeltaArguments& a, const DeltaSize& size);

}  // namespace so
