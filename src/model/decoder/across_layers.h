// Internal to the decoder: what one layer makes and others read, beside the residual stream. It lasts for a whole pass.
#pragma once

#include <cstdint>
#include <vector>

#include "base/tensor.h"
#include "device/arena.h"
#include "model/decoder/context.h"

namespace so {

struct AcrossLayers {
  // T [N, layers * layer_input]: what each layer reads in columns of its own. A layer's backward pass puts their
  // gradient there, since nothing reads them afterwards. Empty if layers have no such inputs.
  Tensor layer_inputs;
  // A layer whose keys others attend to has its rotated keys and its values here, T [N, 2 * kv_width], and, in a pass
  // with a backward pass, the sum of the others' gradients, added from the last layer down. Other layers have nothing.
  struct Keys {
    Tensor rows, gradient;
  };
  std::vector<Keys> keys;  // by layer; empty if no layer attends to another's
};

// In the caller's scope of the arena.
AcrossLayers acquire_across_layers(const DecoderContext& context, Arena& arena, std::int64_t tokens, bool backward);

}  // namespace so
