// Output projection and cross-entropy over chunks of rows: logits, losses and gradients of one chunk live in the
// workspace and are gone when the next begins. Only rows that have a target are computed at all; they are gathered, so
// that masked prompts cost nothing.
//
// A loss is log(sum exp(logit - max)) - (logit[target] - max), exact to fp32 rounding however large the logits. In bf16
// the gradients of the logits are rounded to bf16 before they are multiplied, as everything else that flows back; a
// bf16 dweight is rounded once a chunk.
#pragma once

#include "ops/cpu/gemm.h"
#include "ops/ops.h"

namespace so {

class ThreadPool;

void linear_cross_entropy(ThreadPool& pool, const Ops::LinearCrossEntropy& args, Bf16Path path = best_bf16_path());

}  // namespace so
