// Internal to the decoder: the load-balancing loss of the routers of all layers with experts.
#pragma once

#include "model/decoder/context.h"
#include "model/decoder/pass.h"

namespace so {

// Returns empty tensors where the spec asks for no such loss; else memory that the lowest layer with experts is the
// first to write. It lasts as long as the caller's scope of the arena.
RouterLoad acquire_router_load(const DecoderContext& context, Arena& arena);
// The loss is this factor times the sum over experts of counts[e] * shares[e]. `tokens`: of the batch, in all slices.
double router_loss_scale(const DecoderContext& context, std::int64_t tokens);
// Adds the loss to that of every trained token. It comes after the last layer's forward pass and before the first
// backward pass of experts. Where the batch is a slice all ranks call it, and pass.load becomes the sum of theirs.
void add_router_loss(const DecoderContext& context, const DecoderPass& pass, Tensor losses);

}  // namespace so
