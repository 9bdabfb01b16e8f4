// Internal to the decoder: what the calls for one micro-batch share, and the residual stream between its layers.
#pragma once

#include <cstdint>
#include <string_view>

#include "device/arena.h"
#include "model/decoder/across_layers.h"
#include "model/decoder/decoder.h"
#include "model/parameters.h"
#include "offload/memory/parameter_source.h"
#include "ops/ops.h"

namespace so {

// How the routers of all layers used the experts, for the load-balancing loss; empty where there is none. The lowest
// layer with experts writes it, and those above add to it.
struct RouterLoad {
  Tensor counts, shares;  // f32 [E]
  Tensor both;            // f32 [2 E], in which these two lie
};

struct DecoderPass {
  Stream& stream;
  const DeviceBatch& batch;
  WeightSource& weights;
  Arena& arena;
  AcrossLayers across;
  RouterLoad load;
  float grad_scale = 0;  // backward
  const ForwardObserver* observer = nullptr;
  std::int64_t tokens() const { return batch.tokens(); }
  void show(int unit, std::string_view what, Tensor values) const {
    if (observer != nullptr) (*observer)(unit, what, values);
  }
  // Empty where the layer has no such parameter.
  Tensor weight(Joined p) const { return p ? weights.weight(p.first, p.count) : Tensor(); }
};

// The residual stream between layers, as x + residual_scale * delta, times the layer's scale if there is one: the next
// norm makes the sum. All T [N, H], in the arena. Layers write to `scratch` and `middle`, in backward too.
struct ResidualStream {
  // `scratch` lasts as long as the caller's scope of the arena.
  ResidualStream(Arena& arena, DType activations, std::int64_t tokens, std::int64_t hidden)
      : scratch(arena.acquire("block output", activations, {tokens, hidden})) {}
  Tensor x;        // empty where delta is the whole stream, but for the scale
  Tensor delta;    // empty where x is the whole stream: below the first layer, and in backward
  Tensor scratch;  // where blocks write what they add
  Tensor middle;   // where layers that do not keep theirs put the stream between their blocks; empty if there are none
  Joined scale{};  // what multiplies the sum, if there is a delta; empty: nothing does

  // The same memory with another stream, which no layer's scale multiplies.
  ResidualStream with(Tensor new_x, Tensor new_delta) const {
    ResidualStream other = *this;
    other.x = new_x, other.delta = new_delta, other.scale = {};
    return other;
  }
  // Those of `count` tokens from `first` on, of what there is.
  ResidualStream rows(std::int64_t first, std::int64_t count) const {
    ResidualStream part = *this;
    for (Tensor* tensor : {&part.x, &part.delta, &part.scratch, &part.middle})
      if (*tensor) *tensor = tensor->rows(first, count);
    return part;
  }
};

}  // namespace so
