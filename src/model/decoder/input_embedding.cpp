#include "model/decoder/input_embedding.h"

namespace so {

void InputEmbedding::embed(const DecoderPass& pass, Tensor x) const {
  context_.ops.embedding(pass.stream, x, pass.weights.weight(context_.index.embedding), pass.batch.ids);
  if (const float scale = this->scale(); scale != 1) context_.ops.add_scaled(pass.stream, x, Tensor(), x, scale);
}

void InputEmbedding::forward(const DecoderPass& pass, Tensor x) const {
  pass.weights.require_weights(0, pass.stream);
  embed(pass, x);
  if (layer_inputs_) layer_inputs_.forward(pass, x);
  pass.weights.release_weights(0, pass.stream);
  pass.show(0, "the embedding", x);
  if (layer_inputs_) pass.show(0, "the inputs of layers", pass.across.layer_inputs);
}

void InputEmbedding::backward(const DecoderPass& pass, GradientSink& gradients, Tensor dresidual, Tensor room) const {
  gradients.require_gradients(0, pass.stream);
  if (layer_inputs_) {
    pass.weights.require_weights(0, pass.stream);
    embed(pass, room);
    layer_inputs_.backward(pass, gradients, room, dresidual);
    pass.weights.release_weights(0, pass.stream);
  }
  const auto dtable = gradients.gradient(context_.index.embedding);
  if (!dtable.tensor) return;
  if (const float scale = this->scale(); scale != 1)
    context_.ops.add_scaled(pass.stream, dresidual, Tensor(), dresidual, scale);
  context_.ops.embedding_grad(pass.stream, dtable.tensor, dresidual, pass.batch.ids, dtable.mode);
}

}  // namespace so
