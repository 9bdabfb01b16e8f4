// Internal to the decoder: the last block of a layer that reads inputs of its own beside the residual stream
// (layer_inputs.h): the stream through a gate, times them, through a projection and a norm, is added to the stream.
#pragma once

#include <cstdint>
#include <vector>

#include "model/decoder/context.h"
#include "model/decoder/pass.h"

namespace so {

class LayerInputBlock {
 public:
  LayerInputBlock(const DecoderContext& context, std::int64_t layer);
  // False of a layer without such inputs; nothing else may be called then.
  explicit operator bool() const { return width_ > 0; }

  // Lists the parameters that backward() asks the sink for.
  std::vector<Joined> parameters() const { return {gate_, out_, norm_}; }
  // `inputs`: those of all layers, of the tokens of `stream`, T [n, H], which becomes what it is behind the block.
  void forward(const DecoderPass& pass, Tensor inputs, Tensor stream) const;
  // `stream` is what the block read. dstream is the gradient of the stream behind the block, and becomes that before
  // it; the layer's columns of `inputs` become their gradient.
  void backward(const DecoderPass& pass, GradientSink& gradients, Tensor inputs, Tensor stream, Tensor dstream) const;

 private:
  struct Work {
    Tensor gate;                  // T [n, D]
    Tensor gate_inputs;           // T [n, 2 D]: the gate, and the layer's inputs
    Tensor activated;             // T [n, D]
    Tensor raw, inv_rms, normed;  // T [n, H], f32 [n], T [n, H]
  };
  // What it acquires lasts as long as the caller's scope of the arena.
  Work run(const DecoderPass& pass, Tensor inputs, Tensor stream) const;
  Heads columns(Tensor rows, std::int64_t from) const { return {rows, from, 1, width_}; }

  const DecoderContext& context_;
  Ops& ops_;
  const Joined gate_, out_, norm_;
  const std::int64_t width_, first_;  // D, and where the layer's columns begin
};

}  // namespace so
