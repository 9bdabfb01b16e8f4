#include "model/decoder/state_space_part.h"

namespace so {
namespace {

PackedDocuments packed_documents(const DecoderPass& pass) {
  return {pass.batch.spans.cu_q, pass.batch.spans.documents};
}

// The values and what groups write and read with, one behind the other in a row.
struct SpaceHeads {
  Heads x, b, c;
};
SpaceHeads space_heads(Tensor rows, const StateSpacePart& part, const StateSpaceSpec& s) {
  const std::int64_t width = part.heads * s.head_dim;
  return {{rows, 0, part.heads, s.head_dim},
          {rows, width, part.groups, s.state},
          {rows, width + part.groups * s.state, part.groups, s.state}};
}

Heads step_in(Tensor rows, const StateSpacePart& part) { return {rows, part.step_column, 1, part.heads}; }

Ops::CausalConv space_convolution(const DecoderContext& context, const DecoderPass& pass, const StateSpacePart& part,
                                  const LayerCache* cache) {
  const std::int64_t width = part.convolved_width(context.spec.state_space);
  return {.out = {part.convolved, 0, 1, width},
          .x = {part.projected, part.first_column, 1, width},
          .weight = part.convolution,
          .bias = part.convolution_bias,
          .documents = packed_documents(pass),
          .before = cache != nullptr ? cache->convolution : Tensor()};
}

Ops::StepGates step_gates(const DecoderContext& context, const StateSpacePart& part) {
  return {.decay = part.decay,
          .step = part.step,
          .x = step_in(part.projected, part),
          .a_log = part.a_log,
          .dt_bias = part.dt_bias,
          .low = static_cast<float>(context.spec.state_space.least_step)};
}

Ops::StateSpace state_space(const DecoderContext& context, const DecoderPass& pass, const StateSpacePart& part,
                            const LayerCache* cache) {
  const StateSpaceSpec& s = context.spec.state_space;
  const SpaceHeads heads = space_heads(part.convolved, part, s);
  return {.out = {part.mixed, 0, part.heads, s.head_dim},
          .x = heads.x,
          .b = heads.b,
          .c = heads.c,
          .decay = part.decay,
          .step = part.step,
          .skip = part.skip,
          .documents = packed_documents(pass),
          .state = cache != nullptr ? cache->state : Tensor()};
}

StateSpaceSize size_of_space(const DecoderContext& context, const DecoderPass& pass, const StateSpacePart& part) {
  const StateSpaceSpec& s = context.spec.state_space;
  return {part.projected.dim(0), pass.batch.spans.documents, part.groups, part.heads, s.state, s.head_dim,
          context.activations()};
}

}  // namespace

void acquire_state_space_inputs(const DecoderContext& context, Arena& arena, std::int64_t rows, std::int64_t groups,
                                std::int64_t heads, LayerActivations& a) {
  const StateSpacePart part{.groups = groups, .heads = heads};
  acquire_if_empty(arena, a.convolved, "convolved", context.activations(),
                   {rows, part.convolved_width(context.spec.state_space)});
  acquire_if_empty(arena, a.decay, "decay", DType::f32, {rows, heads});
  acquire_if_empty(arena, a.rate, "steps", DType::f32, {rows, heads});
}

void make_state_space_inputs(const DecoderContext& context, const DecoderPass& pass, const StateSpacePart& part,
                             const LayerCache* cache) {
  context.ops.causal_conv(pass.stream, space_convolution(context, pass, part, cache));
  context.ops.step_gates(pass.stream, step_gates(context, part));
}

void apply_state_space(const DecoderContext& context, const DecoderPass& pass, const StateSpacePart& part,
                       const LayerCache* cache) {
  Arena::Scope scope(pass.arena);
  Ops::StateSpace call = state_space(context, pass, part, cache);
  const std::size_t scratch = context.ops.memory().state_space(size_of_space(context, pass, part));
  call.scratch = acquire_bytes(pass.arena, "state space scratch", scratch);
  context.ops.state_space(pass.stream, call);
}

void state_space_backward(const DecoderContext& context, const DecoderPass& pass, const StateSpacePart& part,
                          Tensor dmixed, Tensor dprojected, const StateSpaceTargets& targets) {
  const StateSpaceSpec& s = context.spec.state_space;
  Ops& ops = context.ops;
  Arena& arena = pass.arena;
  Arena::Scope scope(arena);
  const std::int64_t rows = dmixed.dim(0), width = part.convolved_width(s);
  const Tensor dconvolved = arena.acquire("gradient of convolved", context.activations(), {rows, width});
  const Tensor ddecay = arena.acquire("gradient of decay", DType::f32, {rows, part.heads}),
               dstep = arena.acquire("gradient of steps", DType::f32, {rows, part.heads});
  {
    Arena::Scope of_space(arena);
    const SpaceHeads gradient = space_heads(dconvolved, part, s);
    const std::size_t scratch = ops.memory().state_space_grad(size_of_space(context, pass, part));
    ops.state_space_grad(pass.stream, {.dx = gradient.x,
                                       .db = gradient.b,
                                       .dc = gradient.c,
                                       .ddecay = ddecay,
                                       .dstep = dstep,
                                       .dskip = targets.skip.tensor,
                                       .dskip_mode = targets.skip.mode,
                                       .dout = {dmixed, 0, part.heads, s.head_dim},
                                       .forward = state_space(context, pass, part, nullptr),
                                       .scratch = acquire_bytes(arena, "state space scratch", scratch)});
  }
  ops.step_gates_grad(pass.stream, {.dx = step_in(dprojected, part),
                                    .da_log = targets.a_log.tensor,
                                    .ddt_bias = targets.dt_bias.tensor,
                                    .da_log_mode = targets.a_log.mode,
                                    .ddt_bias_mode = targets.dt_bias.mode,
                                    .ddecay = ddecay,
                                    .dstep = dstep,
                                    .forward = step_gates(context, part)});
  ops.causal_conv_grad(pass.stream, {.dx = {dprojected, part.first_column, 1, width},
                                     .dweight = targets.convolution.tensor,
                                     .dweight_mode = targets.convolution.mode,
                                     .dbias = targets.convolution_bias.tensor,
                                     .dbias_mode = targets.convolution_bias.mode,
                                     .dout = {dconvolved, 0, 1, width},
                                     .forward = space_convolution(context, pass, part, nullptr)});
}

}  // namespace so
