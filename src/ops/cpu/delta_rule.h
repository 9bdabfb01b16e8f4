// The gated delta rule, token by token in fp32: the readable reference, and what trains on a CPU. [Gated DeltaNet, Yang
// et al. 2024]
//
// A document and a key head, with the value heads that share it, are one task, so that all sums have one order. Its
// tokens are taken in chunks of 64, and each chunk goes through one block of the states' columns after another
// (delta_columns.h). Backward, the states at the beginning of every chunk are made first; those between them are made
// again chunk by chunk, from the last to the first. The former take 4 k_dim v_dim bytes a value head of the task for
// each 64 tokens of its document, memory that a thread keeps from call to call.
#pragma once

#include "ops/ops.h"

namespace so {

class ThreadPool;

// The arguments have been checked, but for where documents lie (Bug if outside the rows).
void delta_rule_forward(ThreadPool& pool, const Ops::DeltaRule& a);
void delta_rule_backward(ThreadPool& pool, const Ops::DeltaRuleGrad& g);

}  // namespace so
