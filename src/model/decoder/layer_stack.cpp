#include "model/decoder/layer_stack.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "model/parameters.h"
#include "offload/memory/activation_store.h"

namespace so {

LayerStack::LayerStack(const DecoderContext& context) : context_(context), embedding_(context) {
  int items = 0;
  layers_.reserve(static_cast<std::size_t>(context.spec.layers));
  for (std::int64_t layer = 0; layer < context.spec.layers; ++layer) {
    layers_.emplace_back(context, layer);
    items_.push_back(context.keep_of(layer) == Keep::host ? items++ : -1);
  }
}

void LayerStack::run(const DecoderPass& pass, ResidualStream& residual, KvCache* cache) const {
  // A layer's first norm reads what the layer before left in `middle` and writes `x`, so one of each is enough.
  const LayerActivations a = layer(0).acquire_kept(pass, Keep::input);
  residual.middle =
      pass.arena.acquire("after attention", context_.activations(), {pass.tokens(), context_.spec.hidden});
  embedding_.forward(pass, a.x);
  residual.x = a.x;
  for (const DecoderLayer& layer : layers_) layer.forward(pass, a, residual, cache);
}

std::vector<LayerActivations> LayerStack::acquire(const DecoderPass& pass, ResidualStream& residual) const {
  const auto acquire_stream = [&](const char* name) {
    return pass.arena.acquire(name, context_.activations(), {pass.tokens(), context_.spec.hidden});
  };
  std::vector<LayerActivations> kept;
  std::vector<Tensor> shared;  // by layers in a row that keep nothing, one each; every such row uses them
  std::size_t in_row = 0;
  for (std::int64_t l = 0; l < size(); ++l) {
    // Layers that have no backward pass share one place, as where nothing is kept (run()).
    kept.push_back(l > 0 && !context_.has_backward(l) ? kept.back() : layer(l).acquire_kept(pass, context_.keep_of(l)));
    LayerActivations& a = kept.back();
    in_row = keeps_nothing(l) ? in_row + 1 : 0;
    if (in_row > shared.size()) shared.push_back(acquire_stream("layer input made again"));
    if (in_row > 0) a.x = shared[in_row - 1];
    if (layer(l).has_middle() && !a.middle && !residual.middle) residual.middle = acquire_stream("after attention");
  }
  if (const int items = 1 + *std::max_element(items_.begin(), items_.end()); items > 0) {
    SO_CHECK(context_.store != nullptr, "{} layers' inputs, and no store", items);
    std::array<Tensor, ActivationStore::places> memory;
    for (Tensor& place : memory) place = acquire_stream("layer input on its way");
    context_.store->begin(items, memory);
  }
  return kept;
}

void LayerStack::forward(const DecoderPass& pass, std::vector<LayerActivations>& kept, ResidualStream& residual) const {
  for (std::int64_t l = 0; l < size(); ++l) {
    LayerActivations& a = kept[static_cast<std::size_t>(l)];
    if (item(l) >= 0) a.x = context_.store->write(item(l), pass.stream);
    if (l == 0) {
      embedding_.forward(pass, a.x);
      residual.x = a.x;
    }
    layer(l).forward(pass, a, residual, nullptr);
    if (item(l) >= 0) context_.store->written(item(l), pass.stream);
  }
}

void LayerStack::read_input(const DecoderPass& pass, std::int64_t layer, LayerActivations& kept) const {
  if (item(layer) >= 0) kept.x = context_.store->read(item(layer), pass.stream);
}

void LayerStack::remake_inputs(const DecoderPass& pass, std::int64_t last, std::vector<LayerActivations>& kept,
                               ResidualStream& residual) const {
  std::int64_t first = last;
  while (keeps_nothing(first)) --first;
  read_input(pass, first, kept[static_cast<std::size_t>(first)]);
  residual.delta = {};
  DecoderPass again = pass;
  again.load = {};  // the routers' use of experts has been counted
  for (std::int64_t l = first; l < last; ++l)
    layer(l).forward(again, kept[static_cast<std::size_t>(l)], residual, nullptr);
}

void LayerStack::backward(const DecoderPass& pass, GradientSink& gradients, std::vector<LayerActivations>& kept,
                          ResidualStream& residual, Tensor dresidual) const {
  residual.delta = {};
  for (std::int64_t l = size(); l-- > 0 && context_.has_backward(l);) {
    // No other layers have written to their places since the forward pass came through the last ones.
    const bool is_there = l + 1 == size() || keeps_nothing(l + 1);
    if (keeps_nothing(l) && !is_there) remake_inputs(pass, l, kept, residual);
    LayerActivations& a = kept[static_cast<std::size_t>(l)];
    read_input(pass, l, a);
    layer(l).backward(pass, gradients, a, residual, dresidual);
    residual.delta = {};  // layers below find their inputs
    if (item(l) >= 0) context_.store->release(item(l), pass.stream);
  }
  // All that lies below the lowest trained unit is frozen.
  for (int unit = std::min(context_.first_trained, head_unit(context_.spec)) - 1; unit > 0; --unit)
    gradients.gradients_ready(unit, pass.stream);
  if (context_.first_trained == 0) embedding_.backward(pass, gradients, dresidual, residual.scratch);
  gradients.gradients_ready(0, pass.stream);
}

}  // namespace so
