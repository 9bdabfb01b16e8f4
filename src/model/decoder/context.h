// Internal to the decoder: what all its parts know of the model and of the way it runs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "model/decoder/decoder.h"
#include "model/decoder/keep.h"
#include "model/parameters.h"
#include "model/spec.h"
#include "ops/ops.h"

namespace so {

// The decoder's parts refer to it and to what is in it, so it stays where it is for as long as they last.
struct DecoderContext {
  DecoderSpec spec;
  ParameterIndex index;
  int first_trained;  // unit
  Ops& ops;
  Tensor rope;                 // f32 on the device, as rope_table() of model/rope.h makes it
  Tensor selection_biases;     // f32 [layers * experts.count] on the device; empty: there are none, or all are 0
  DecoderSettings settings;    // `keep` as kept_by_layer() gives it
  ActivationStore* store;      // null if no layer keeps its input on the host
  SequenceExchange* exchange;  // null if batches are never split

  DType activations() const { return settings.formats.activations; }
  const ParameterIndex::Layer& parameters(std::int64_t layer) const {
    return index.layers[static_cast<std::size_t>(layer)];
  }
  Keep keep_of(std::int64_t layer) const { return settings.keep[static_cast<std::size_t>(layer)]; }
  // Whether a trained parameter lies in the layer or below it: only then is its backward pass needed, or anything kept
  // for it.
  bool has_backward(std::int64_t layer) const { return layer_unit(layer) >= first_trained; }
  // Returns the factor of a table's rows, rounded to the activations' format where the model has it so.
  float table_scale(double scale) const {
    const auto single = static_cast<float>(scale);
    return spec.round_embedding_scale && activations() == DType::bf16 ? static_cast<float>(bf16(single)) : single;
  }
  float residual_scale() const { return static_cast<float>(spec.residual_scale); }
};

}  // namespace so
