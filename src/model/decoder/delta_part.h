// Internal to the decoder: what stands between the projections and the gated norm of a delta layer, for all of its
// heads, or for some where the tokens are split among ranks.
#pragma once

#include <cstdint>

#include "model/decoder/context.h"
#include "model/decoder/layer_activations.h"
#include "model/decoder/pass.h"
#include "offload/memory/parameter_source.h"

namespace so {

// Some key heads of a layer with their value heads, over all rows of a batch's documents. What is convolved lies in the
// first columns of `projected`: queries, keys, values.
struct DeltaPart {
  std::int64_t k_heads = 0, v_heads = 0;
  Tensor projected;                    // T [M, width]
  std::int64_t b_column = 0;           // where `b` lies in that, v_heads columns, and `a` behind it
  Tensor convolution, a_log, dt_bias;  // weights of these heads
  Tensor convolved, decay, rate;       // T [M, convolved_width], f32 [M, v_heads] each
  Tensor mixed;                        // T [M, v_heads * v_dim]

  std::int64_t convolved_width(const DeltaSpec& d) const { return 2 * k_heads * d.k_dim + v_heads * d.v_dim; }
};

// Where the gradients of a part's weights go.
struct DeltaTargets {
  GradientSink::Target convolution, a_log, dt_bias;
};

// Acquires what lies between a part's projections and what the rule makes, in `a`, as far as it is empty.
void acquire_rule_inputs(const DecoderContext& context, Arena& arena, std::int64_t rows, std::int64_t k_heads,
                         std::int64_t v_heads, LayerActivations& a);
// Computes it. `cache`: of this layer, or null.
void make_rule_inputs(const DecoderContext& context, const DecoderPass& pass, const DeltaPart& part,
                      const LayerCache* cache);
// Computes part.mixed from that.
void apply_rule(const DecoderContext& context, const DecoderPass& pass, const DeltaPart& part, const LayerCache* cache);
// Computes the gradient of part.projected, but for columns that are of no use here, and of the weights from that of
// part.mixed. part.mixed itself is not read.
void rule_backward(const DecoderContext& context, const DecoderPass& pass, const DeltaPart& part, Tensor dmixed,
                   Tensor dprojected, const DeltaTargets& targets);

}  // namespace so
