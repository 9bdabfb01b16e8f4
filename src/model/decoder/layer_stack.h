// Internal to the decoder: all layers with the embedding below them, and what is kept between forward and backward:
// places for what the layers keep, inputs that wait in host memory, and inputs that are made again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/decoder/decoder_layer.h"
#include "model/decoder/input_embedding.h"

namespace so {

class LayerStack {
 public:
  explicit LayerStack(const DecoderContext& context);

  // Runs a forward pass and keeps nothing. What it acquires lasts as long as the caller's scope of the arena.
  void run(const DecoderPass& pass, ResidualStream& residual, KvCache* cache) const;

  // A pass with a backward pass has three parts. acquire() returns memory for what the layers keep, by layer, in the
  // caller's scope of the arena, and begins a pass of the store.
  std::vector<LayerActivations> acquire(const DecoderPass& pass, ResidualStream& residual) const;
  void forward(const DecoderPass& pass, std::vector<LayerActivations>& kept, ResidualStream& residual) const;
  // dresidual, T [N, H], is the gradient of the residual stream behind the last layer. Reports the gradients of every
  // unit below the head, those of frozen ones too.
  void backward(const DecoderPass& pass, GradientSink& gradients, std::vector<LayerActivations>& kept,
                ResidualStream& residual, Tensor dresidual) const;

 private:
  std::int64_t size() const { return static_cast<std::int64_t>(layers_.size()); }
  const DecoderLayer& layer(std::int64_t index) const { return layers_[static_cast<std::size_t>(index)]; }
  bool keeps_nothing(std::int64_t layer) const { return context_.keep_of(layer) == Keep::nothing; }
  // Returns the layer's item of the store, -1 if it has none.
  int item(std::int64_t layer) const { return items_[static_cast<std::size_t>(layer)]; }
  // Brings the layer's input back to `kept` if it waits in the store.
  void read_input(const DecoderPass& pass, std::int64_t layer, LayerActivations& kept) const;
  // Runs the layers below `last` forward again, from the nearest one that kept its input: they find theirs in `kept`,
  // and `residual` is then the input of `last`.
  void remake_inputs(const DecoderPass& pass, std::int64_t last, std::vector<LayerActivations>& kept,
                     ResidualStream& residual) const;

  const DecoderContext& context_;
  const InputEmbedding embedding_;
  std::vector<DecoderLayer> layers_;
  std::vector<int> items_;  // by layer
};

}  // namespace so
