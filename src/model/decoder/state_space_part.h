// Internal to the decoder: what stands between the projections and the gated norm of a state space, for all of its
// heads, or for some where the tokens are split among ranks.
#pragma once

#include <cstdint>

#include "model/decoder/context.h"
#include "model/decoder/layer_activations.h"
#include "model/decoder/pass.h"
#include "offload/memory/parameter_source.h"

namespace so {

// Some groups of a layer with their heads, over all rows of a batch's documents.
struct StateSpacePart {
  std::int64_t groups = 0, heads = 0;
  Tensor projected;               // T [M, width]
  std::int64_t first_column = 0;  // of what is convolved in it: values, what groups write with, what they read with
  std::int64_t step_column = 0;   // of the steps, one of each head
  Tensor convolution, convolution_bias, a_log, dt_bias, skip;  // weights of these heads; the bias may be empty
  Tensor convolved, decay, step;                               // T [M, convolved_width], f32 [M, heads] each
  Tensor mixed;                                                // T [M, heads * head_dim]

  std::int64_t convolved_width(const StateSpaceSpec& s) const { return heads * s.head_dim + 2 * groups * s.state; }
};

// Where the gradients of a part's weights go; without a bias of the convolution its tensor is empty.
struct StateSpaceTargets {
  GradientSink::Target convolution, convolution_bias, a_log, dt_bias, skip;
};

// Acquires what lies between a part's projections and what the state space makes, in `a`, as far as it is empty.
void acquire_state_space_inputs(const DecoderContext& context, Arena& arena, std::int64_t rows, std::int64_t groups,
                                std::int64_t heads, LayerActivations& a);
// Computes it. `cache`: of this layer, or null.
void make_state_space_inputs(const DecoderContext& context, const DecoderPass& pass, const StateSpacePart& part,
                             const LayerCache* cache);
// Computes part.mixed from that.
void apply_state_space(const DecoderContext& context, const DecoderPass& pass, const StateSpacePart& part,
                       const LayerCache* cache);
// Computes the gradient of part.projected, but for columns that are of no use here, and of the weights from that of
// part.mixed. part.mixed itself is not read.
void state_space_backward(const DecoderContext& context, const DecoderPass& pass, const StateSpacePart& part,
                          Tensor dmixed, Tensor dprojected, const StateSpaceTargets& targets);

}  // namespace so
