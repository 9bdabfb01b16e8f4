// State spaces in chunks of 64 rows, by fp32 products: the readable reference, and what trains on a CPU. [Mamba2, Dao &
// Gu 2024]
//
// A document and a group, with the heads that share it, are one task, so that all sums have one order. In a chunk with
// the rows B, C, X, steps s and S, the state before it, and for p_i what is left of S at row i, L_ij what is left at
// row i of what row j <= i has written, w_j that at the last row:
//
//   out = (L o C B^T) (s X) + p C S + skip X      S' = p_last S + (w s X)^T B, transposed
//
// L, p and w are products of exponentials, never quotients, so that decays of any size are exact. Backward, the states
// at the beginning of every chunk are made first, 4 k_dim v_dim bytes a head of the task for each 64 tokens of its
// document, memory that a thread keeps from call to call.
#pragma once

#include "ops/ops.h"

namespace so {

class ThreadPool;

// The arguments have been checked, but for where documents lie (Bug if outside the rows).
void state_space_forward(ThreadPool& pool, const Ops::StateSpace& a);
void state_space_backward(ThreadPool& pool, const Ops::StateSpaceGrad& g);

}  // namespace so
