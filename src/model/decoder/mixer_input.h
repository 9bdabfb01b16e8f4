// Internal to the decoder: what each MixerBlock does before its tokens meet, whatever mixes them: the norm, the product
// with its first weights, and the gradients of both, in tiles of tokens.
#pragma once

#include <cstdint>
#include <functional>

#include "model/decoder/context.h"
#include "model/decoder/layer_activations.h"
#include "model/decoder/pass.h"
#include "model/decoder/projection.h"
#include "offload/memory/parameter_source.h"

namespace so {

// Acquires a.normed1 if it is empty, for n tokens; without a norm it becomes a.x. A projection in FP8 needs it in
// codes, while it multiplies: these come with make_projections() and go.
void complete_mixer_input(const DecoderContext& context, Arena& arena, const Projection& projection, std::int64_t n,
                          LayerActivations& a);

// Makes a.x, the residual stream, unless it is there, and of it a.normed1; then project(part) makes the projections of
// a tile, by way of `projection`. Without room for a.normed1 it lasts for one.
void make_projections(const DecoderContext& context, const DecoderPass& pass, const Projection& projection,
                      const ParameterIndex::Layer& p, const LayerActivations& a, const ResidualStream& residual,
                      std::int64_t tile, const std::function<void(const LayerActivations& part)>& project);

// Adds the gradient of make_projections() to dresidual, from dprojected, T [N, projected_width]. `dnormed`: memory for
// T [tile, H]. order(part, dtile) returns a tile of dprojected in the order of the weight's rows; none: it has that.
void projections_backward(const DecoderContext& context, const DecoderPass& pass, GradientSink& gradients,
                          const Projection& projection, const ParameterIndex::Layer& p, const LayerActivations& a,
                          Tensor dprojected, Tensor dnormed, Tensor dresidual, std::int64_t tile,
                          const std::function<Tensor(const LayerActivations& part, Tensor dtile)>& order = nullptr);

}  // namespace so
