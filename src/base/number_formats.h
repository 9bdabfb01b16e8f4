// The number formats of a run, by role. They are decided once (options/run_request.h) and carried as one value; each
// place reads the role it means. Master weights have no role here: they are fp32, and so is all state in a checkpoint.
#pragma once

#include "base/dtype.h"

namespace so {

struct NumberFormats {
  DType weights = DType::f32;      // on the device, as forward and backward read them
  DType activations = DType::f32;  // what operations read and write, what layers keep for backward, the KV cache
  DType gradients = DType::f32;    // of the weights, as a step keeps them and adds up those of its micro-batches
  DType rank_sums = DType::f32;    // with several ranks: of a rank's slices of the gradients, added up over ranks
  DType moments = DType::f32;      // AdamW's, as they are kept between steps; u8: optim/moment_blocks.h
  DType exported = DType::f32;     // weights in the model that is written, a checkpoint's too
  bool operator==(const NumberFormats&) const = default;
};

// Returns the formats where the model's own dtype decides alone: it is that of weights, activations and
// exports; gradients and moments are fp32.
NumberFormats model_formats(DType dtype);

// The one place that says which formats go together; throws Bug, with the reason, for others. Each role is fp32 or
// bf16, but moments may be 8-bit codes too. Weights and activations have the same, because an operation takes both in
// one (ops/ops.h). Gradients have that or fp32, and sums over ranks are in the gradients' format or in fp32.
void check_formats(const NumberFormats& formats);

}  // namespace so
