// Internal to the decoder: attention where the tokens are split among ranks (slice_messages.h).
#pragma once

#include <cstdint>

#include "model/decoder/attention_setup.h"
#include "model/decoder/context.h"
#include "model/decoder/layer_activations.h"
#include "model/decoder/pass.h"
#include "model/decoder/slice_messages.h"
#include "model/sequence_split.h"

namespace so {

// For batches with DeviceBatch::is_slice(), of a decoder that has an exchange. forward() and backward() are collective:
// all ranks call them in the same order.
class SliceAttention {
 public:
  SliceAttention(const DecoderContext& context, std::int64_t layer);

  // Returns the heads that this rank attends with.
  RankHeads own_heads() const;
  // Acquires what attention reads and makes of the own heads, if it is empty, in the caller's scope of the arena.
  void complete(const DecoderPass& pass, LayerActivations& a) const;
  // Computes the slice's a.mixed from its rotated queries and keys.
  void forward(const DecoderPass& pass, LayerActivations a) const;
  // Computes the gradient of what attention reads from dattention, both of the slice. What forward() exchanged is
  // exchanged again, unless it is in a.own_qkv.
  void backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations a, Tensor dattention,
                const AttentionHeads& gradient) const;

 private:
  // Returns the columns of the own heads' queries, keys and values.
  std::int64_t own_width() const;
  void qkv_to_heads(const DecoderPass& pass, const LayerActivations& a, Tensor all) const;
  void attention_to_heads(const DecoderPass& pass, Tensor attention, Tensor all) const;
  Ops::Attention own_attention(const DecoderPass& pass, const LayerActivations& a) const;
  AttentionSize own_size(const DecoderPass& pass, const AttentionSpans& spans) const;
  void unpack_gradient(const DecoderPass& pass, Tensor packed, const AttentionHeads& gradient) const;

  const DecoderContext& context_;
  const AttentionShape shape_;
  Ops& ops_;
  const Joined sinks_;
  const AttentionSetup setup_;
  const SliceMessages messages_;
};

}  // namespace so
