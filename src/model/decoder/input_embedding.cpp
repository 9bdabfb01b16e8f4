#include "model/decoder/input_embedding.h"

#include "base/dtype.h"

namespace so {

void InputEmbedding::forward(const DecoderPass& pass, Tensor x) const {
  pass.weights.require_weights(0, pass.stream);
  context_.ops.embedding(pass.stream, x, pass.weights.weight(context_.index.embedding), pass.batch.ids);
  pass.weights.release_weights(0, pass.stream);
  if (const float scale = this->scale(); scale != 1) context_.ops.add_scaled(pass.stream, x, Tensor(), x, scale);
  pass.show(0, "the embedding", x);
}

void InputEmbedding::backward(const DecoderPass& pass, GradientSink& gradients, Tensor dresidual) const {
  if (const float scale = this->scale(); scale != 1)
    context_.ops.add_scaled(pass.stream, dresidual, Tensor(), dresidual, scale);
  gradients.require_gradients(0, pass.stream);
  const auto dtable = gradients.gradient(context_.index.embedding);
  context_.ops.embedding_grad(pass.stream, dtable.tensor, dresidual, pass.batch.ids, dtable.mode);
}

float InputEmbedding::scale() const {
  const auto scale = static_cast<float>(context_.spec.embedding_scale);
  const bool rounded = context_.spec.round_embedding_scale && context_.activations() == DType::bf16;
  return rounded ? static_cast<float>(bf16(scale)) : scale;
}

}  // namespace so
