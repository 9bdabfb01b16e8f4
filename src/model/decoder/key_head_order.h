// Internal to the decoder: a delta layer's projections where the rows of their weights are sorted by key head. Each key
// head has its query, its key, and the values and gates of its value heads side by side; behind all of them each has
// the columns of learning and forgetting of its value heads. Everything else computes with the order of DeltaSpec.
#pragma once

#include "model/spec.h"
#include "ops/ops.h"

namespace so {

// out = in, T [N, projected_width], from the one order to the other.
void from_key_head_order(Ops& ops, Stream& stream, const DeltaSpec& delta, Tensor out, Tensor in);
void to_key_head_order(Ops& ops, Stream& stream, const DeltaSpec& delta, Tensor out, Tensor in);

}  // namespace so
