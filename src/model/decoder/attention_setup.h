// Internal to the decoder: what a layer's attention gives to the ops beside queries, keys and values, whether batches
// are whole or slices.
#pragma once

#include <cstdint>

#include "model/decoder/context.h"
#include "model/decoder/pass.h"

namespace so {

class AttentionSetup {
 public:
  AttentionSetup(const DecoderContext& context, std::int64_t layer) : context_(context), layer_(layer) {}

  // Returns the batch's documents with the layer's scale, window and sinks.
  AttentionSpans spans(const DecoderPass& pass) const;
  // Returns the size of a call with all heads.
  AttentionSize size(const AttentionSpans& spans, std::int64_t q_rows, std::int64_t k_rows) const;
  // The scratch lasts as long as the caller's scope of the arena; it is empty if none is needed.
  Tensor acquire_scratch(Arena& arena, const AttentionSize& size) const;
  // The scratch of attention's gradient is limited to that of the largest batch, since what smaller ones could use is
  // not always less. Attention makes do with it.
  Tensor acquire_gradient_scratch(Arena& arena, AttentionSize size) const;

 private:
  const DecoderContext& context_;
  const std::int64_t layer_;
};

}  // namespace so
