// A whole pass of the decoder, forward and backward, and what its layers keep in between: places for what they keep,
// inputs that wait in host memory, and inputs that are made again.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "model/decoder.h"
#include "model/decoder_activations.h"

namespace so {

std::vector<Decoder::Activations> Decoder::acquire_layers(const Pass& pass, Carry& carry) const {
  const auto acquire_stream = [&](const char* name) {
    return pass.arena.acquire(name, settings_.formats.activations, {pass.tokens(), spec_.hidden});
  };
  std::vector<Activations> kept;
  std::vector<Tensor> shared;  // by the layers in a row that keep nothing, and the next ones in a row
  std::size_t in_row = 0;
  for (std::int64_t layer = 0; layer < spec_.layers; ++layer) {
    // Layers that have no backward pass share one place, as where nothing is kept (run_layers()).
    kept.push_back(layer > 0 && !has_backward(layer) ? kept.back() : acquire_kept(pass, layer, keep_of(layer)));
    Activations& a = kept.back();
    in_row = keeps_nothing(layer) ? in_row + 1 : 0;
    if (in_row > shared.size()) shared.push_back(acquire_stream("layer input made again"));
    if (in_row > 0) a.x = shared[in_row - 1];
    if (!a.middle && !carry.middle) carry.middle = acquire_stream("after attention");
  }
  if (const int items = 1 + *std::max_element(items_.begin(), items_.end()); items > 0) {
    SO_CHECK(store_ != nullptr, "{} layers' inputs, and no store", items);
    std::array<Tensor, ActivationStore::places> memory;
    for (Tensor& place : memory) place = acquire_stream("layer input on its way");
    store_->begin(items, memory);
  }
  return kept;
}

void Decoder::forward_layers(const Pass& pass, std::vector<Activations>& kept, Carry& carry) const {
  for (std::int64_t layer = 0; layer < spec_.layers; ++layer) {
    Activations& a = kept[static_cast<std::size_t>(layer)];
    const int item = items_[static_cast<std::size_t>(layer)];
    if (item >= 0) a.x = store_->write(item, pass.stream);
    if (layer == 0) {
      embed(pass, a.x);
      carry.x = a.x;
    }
    layer_forward(pass, layer, a, carry, nullptr);
    if (item >= 0) store_->written(item, pass.stream);
  }
}

void Decoder::read_input(const Pass& pass, std::int64_t layer, Activations& kept) const {
  if (const int item = items_[static_cast<std::size_t>(layer)]; item >= 0) kept.x = store_->read(item, pass.stream);
}

void Decoder::remake_inputs(const Pass& pass, std::int64_t last, std::vector<Activations>& kept, Carry& carry) const {
  std::int64_t first = last;
  while (keeps_nothing(first)) --first;
  read_input(pass, first, kept[static_cast<std::size_t>(first)]);
  carry.delta = {};
  Pass again = pass;
  again.load = {};  // the routers' use of experts has been counted
  for (std::int64_t layer = first; layer < last; ++layer)
    layer_forward(again, layer, kept[static_cast<std::size_t>(layer)], carry, nullptr);
}

void Decoder::backward_layers(const Pass& pass, GradientSink& gradients, std::vector<Activations>& kept, Carry& carry,
                              Tensor dresidual) const {
  carry.delta = {};
  for (std::int64_t layer = spec_.layers; layer-- > 0 && has_backward(layer);) {
    // No other layers have written to their places since the forward pass came through the last ones.
    const bool is_there = layer + 1 == spec_.layers || keeps_nothing(layer + 1);
    if (keeps_nothing(layer) && !is_there) remake_inputs(pass, layer, kept, carry);
    Activations& a = kept[static_cast<std::size_t>(layer)];
    read_input(pass, layer, a);
    layer_backward(pass, layer, gradients, a, carry, dresidual);
    carry.delta = {};  // layers below find their inputs
    if (const int item = items_[static_cast<std::size_t>(layer)]; item >= 0) store_->release(item, pass.stream);
  }
}

void Decoder::embedding_backward(const Pass& pass, GradientSink& gradients, Tensor dresidual) const {
  if (const float scale = embedding_scale(); scale != 1)
    ops_.add_scaled(pass.stream, dresidual, Tensor(), dresidual, scale);
  gradients.require_gradients(0, pass.stream);
  const auto dtable = gradients.gradient(index_.embedding);
  ops_.embedding_grad(pass.stream, dtable.tensor, dresidual, pass.batch.ids, dtable.mode);
}

void Decoder::forward_backward(Stream& stream, const DeviceBatch& batch, WeightSource& weights, GradientSink& gradients,
                               Arena& arena, Tensor losses, float grad_scale) const {
  Arena::Scope scope(arena);
  const Pass pass{stream, batch, weights, arena, acquire_load(arena), grad_scale};
  const DType t = settings_.formats.activations;
  const Tensor dresidual = arena.acquire("gradient of the residual", t, {batch.tokens(), spec_.hidden});
  Carry carry(arena, t, batch.tokens(), spec_.hidden);
  std::vector<Activations> kept = acquire_layers(pass, carry);
  forward_layers(pass, kept, carry);
  head_backward(pass, gradients, carry, losses, dresidual);
  backward_layers(pass, gradients, kept, carry, dresidual);
  // All that lies below the lowest trained unit is frozen.
  for (int unit = std::min(first_trained_, head_unit(spec_)) - 1; unit > 0; --unit)
    gradients.gradients_ready(unit, stream);
  if (first_trained_ == 0) embedding_backward(pass, gradients, dresidual);
  gradients.gradients_ready(0, stream);
}

}  // namespace so
