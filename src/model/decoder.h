// The decoder: forward, backward, and forward with a KV cache, written once for every family and device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "device/arena.h"
#include "model/parameters.h"
#include "model/spec.h"
#include "offload/parameter_source.h"
#include "ops/ops.h"

namespace so {

// Device views of one micro-batch: N tokens of `documents` documents, without padding.
struct DeviceBatch {
  Tensor ids, positions;  // i32 [N]
  Tensor targets;         // i32 [N], negative where there is no loss; empty when only logits are wanted
  AttentionSpans spans;   // cu_q == cu_k; scale is filled in by the decoder
  std::int64_t tokens() const { return ids.size(); }
};

// Keys and values of the rows seen so far, per layer: T [capacity, 2 * kv_width], keys first (rotated), then values.
struct KvCache {
  std::vector<Tensor> layers;
  std::int64_t used = 0;
};

struct DecoderSettings {
  DType compute = DType::f32;        // T of the ops: weights and activations
  bool recompute = false;            // keep only each layer's input and run the layer again in backward
  std::int64_t loss_chunk_rows = 0;  // rows of logits that exist at a time
};

// Owns no memory but its table of rotations. Activations come from the arena it is given; all calls only enqueue.
// Weights and gradients are met through WeightSource and GradientSink. One stream runs it all.
class Decoder {
 public:
  // rope_table: f32 device tensor [positions, 2, rotary_dim / 2] that outlives the decoder.
  Decoder(const DecoderSpec& spec, const ParameterLayout& layout, Ops& ops, Tensor rope_table,
          DecoderSettings settings);

  // Loss of every token: losses f32 [N] on the device, written. Activations are taken from `arena` and given back.
  void forward_loss(Stream& stream, const DeviceBatch& batch, WeightSource& weights, Arena& arena, Tensor losses) const;

  // The same with the gradients of grad_scale * sum(losses).
  void forward_backward(Stream& stream, const DeviceBatch& batch, WeightSource& weights, GradientSink& gradients,
                        Arena& arena, Tensor losses, float grad_scale) const;

  // Logits f32 [rows, V] of the last `rows` tokens. With a cache (one document), the batch continues it: positions
  // start at cache.used, which is advanced.
  void forward_logits(Stream& stream, const DeviceBatch& batch, WeightSource& weights, Arena& arena, Tensor logits,
                      KvCache* cache) const;

  const DecoderSpec& spec() const { return spec_; }

 private:
  struct Activations;  // what a layer keeps for its backward pass
  struct Carry;        // what flows from layer to layer

  Activations acquire_activations(Arena& arena, std::int64_t tokens) const;
  void embed(Stream& stream, const DeviceBatch& batch, WeightSource& weights, Tensor x) const;
  void layer_forward(Stream& stream, std::int64_t layer, const DeviceBatch& batch, WeightSource& weights,
                     Activations& a, Carry& carry, KvCache* cache, bool recomputing) const;
  void layer_backward(Stream& stream, std::int64_t layer, const DeviceBatch& batch, WeightSource& weights,
                      GradientSink& gradients, Arena& arena, Activations& a, Tensor dresidual) const;
  void run_layers(Stream& stream, const DeviceBatch& batch, WeightSource& weights, Arena& arena, Carry& carry,
                  KvCache* cache) const;
  AttentionSpans spans(const DeviceBatch& batch) const;
  // The output projection is the embedding when tied, whose unit must be there too.
  void require_head(WeightSource& weights, Stream& stream) const;
  void release_head(WeightSource& weights, Stream& stream) const;
  std::int64_t loss_rows(std::int64_t tokens) const;

  const DecoderSpec spec_;
  const ParameterIndex index_;
  Ops& ops_;
  const Tensor rope_;
  const DecoderSettings settings_;
};

}  // namespace so
