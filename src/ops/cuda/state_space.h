// The kernels of state spaces. Two sets: in chunks on Hopper's matrix units (hopper/), for bf16 heads of 64 with states
// of 128 whose rows can be read 16 bytes at a time, and token by token in fp32 arithmetic for all else. Both keep
// states in fp32, add in a fixed order, and do a document as if it were alone. [Mamba2, Dao & Gu 2024]
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/head_rows.h"
#include "ops/ops.h"
#include "ops/state_space_memory.h"

namespace so {

struct SpaceArguments {
  HeadRows out, x, b, c;
  HeadRows dout, dx, db, dc;  // backward
  const float *decay = nullptr, *step = nullptr;
  float *ddecay = nullptr, *dstep = nullptr;
  const void* skip = nullptr;  // T [heads]
  float* state = nullptr;      // null: none
  const std::int32_t* starts = nullptr;
  std::int64_t rows = 0;
  std::int64_t gate_width = 0;  // of a row of decay, step and their gradients
  int documents = 0, groups = 0, heads = 0, k_dim = 0, v_dim = 0;
  char* scratch = nullptr;  // as ChunkedSpaceScratch or PlainSpaceScratch lays it out
};

// On GPUs of capability 9.0.
void hopper_state_space(cudaStream_t stream, const SpaceArguments& a, const StateSpaceSize& size);
void hopper_state_space_grad(cudaStream_t stream, const SpaceArguments& a, const StateSpaceSize& size);

// States of at most this many rows and columns: one lies in shared memory.
inline constexpr int plain_space_dim = 128;
void plain_state_space(cudaStream_t stream, DType dtype, const SpaceArguments& a);
void plain_state_space_grad(cudaStream_t stream, DType dtype, const SpaceArguments& a, const StateSpaceSize& size);

// partial f32 [pieces, heads] = <dout, x> of the documents' rows of each piece of skip_piece rows.
inline constexpr std::int64_t skip_piece = 128;
void sum_skip_gradients(cudaStream_t stream, DType dtype, float* partial, const SpaceArguments& a);

}  // namespace so
