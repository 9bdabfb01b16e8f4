// Causal attention by document in fp32 tiles, never a whole score matrix: the softmax is kept up to date block by block
// of keys on the way forward, and probabilities are recomputed from the log-sum-exp on the way back. [FlashAttention,
// Dao et al. 2022; FlashAttention-2, Dao 2023]
//
// The query heads that share a key head are stacked into one tall tile, so grouped queries make the products larger
// rather than more. Tasks are cut by document, key head and block, from the shapes alone; no two tasks write the same
// memory, and sums within one run in a fixed order. Blocks outside the window are not looked at.
//
// A sink is one more term of a query's sum of exponentials, added when its keys are done. lse includes it, so backward
// goes as without one; the sink's own probability is exp(sink - lse), and its value 0, so its score's gradient is
// exp(sink - lse) (0 - delta), delta being rowsum(dout out).
#pragma once

#include "ops/ops.h"

namespace so {

class ThreadPool;

// Check what Ops states of the arguments (Bug if wrong).
void check_attention(const Ops::Attention& a);
void check_attention_grad(const Ops::AttentionGrad& g);

// A query that sees no key (its document has more queries than keys) gets a zero output and an lse of -infinity, or of
// its head's sink, and gives no gradient. A NaN or infinity stays within its document. Rows that belong to no document
// are left alone.
void attention_forward(ThreadPool& pool, const Ops::Attention& a);
void attention_backward(ThreadPool& pool, const Ops::AttentionGrad& g);

}  // namespace so
