// Internal to the decoder: the norms before and behind a block, attention or MLP, and the sum of the residual stream
// that the first of them reads. A norm that the family does not have is an empty Joined.
#pragma once

#include "model/decoder/context.h"
#include "model/decoder/pass.h"
#include "model/decoder/product_input.h"

namespace so {

// Makes what a block reads: `sum` = x + residual_scale * delta, times `scale` if there is one, unless delta is empty
// and the sum is there, and the norm of it, if the block has one, in the memory that `normed` has. If it has none, the
// sum and inv_rms are there, and it will be made when it is read.
void block_input(const DecoderContext& context, const DecoderPass& pass, Joined norm, ProductInput& normed,
                 Tensor inv_rms, Tensor sum, Tensor x, Tensor delta, Joined scale = {});
// Makes out = scale * (x + delta), or with an empty x scale * delta; `out` may be the memory of either. The scales of
// layers lie in the embedding's unit (parameters.h), which is required for it.
void scaled_sum(const DecoderContext& context, const DecoderPass& pass, Tensor out, Tensor x, Tensor delta,
                Joined scale);
// Adds the gradient of block_input() to that of the residual stream.
void block_input_backward(const DecoderContext& context, const DecoderPass& pass, GradientSink& gradients, Joined norm,
                          Tensor sum, Tensor inv_rms, Tensor dnormed, Tensor dresidual);

// Computes dx, the gradient of x, from that of the norm of x, plus `residual` unless that is empty; dx may be the
// memory of either. Writes the gradient of the norm's weight where the sink wants it.
void norm_backward(const DecoderContext& context, const DecoderPass& pass, GradientSink& gradients, Joined norm,
                   Tensor x, Tensor inv_rms, Tensor dout, Tensor residual, Tensor dx);

// Acquires what the norm behind a block needs, if it is empty: its input `raw`, T [n, H], and inv_rms, f32 [n]. They
// last as long as the caller's scope of the arena.
void acquire_output_norm(const DecoderContext& context, Arena& arena, std::int64_t n, Tensor& raw, Tensor& inv_rms);
// Norms what a block adds, from `raw` to `out`; does nothing if the family has no norm there.
void block_output_norm(const DecoderContext& context, const DecoderPass& pass, Joined norm, Tensor out, Tensor raw,
                       Tensor inv_rms);
// Returns the gradient of a block's last product, from that of the residual stream: in `room`, or dresidual itself
// where there is neither norm nor scale between.
Tensor block_output_backward(const DecoderContext& context, const DecoderPass& pass, GradientSink& gradients,
                             Joined norm, Tensor raw, Tensor inv_rms, Tensor room, Tensor dresidual);

}  // namespace so
