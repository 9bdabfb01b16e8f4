// Internal to the decoder: attention where the tokens are split among ranks. Each rank has a slice of the tokens with
// all heads, and attends with some of the heads over all tokens. What goes to a rank lies together, [tokens of the
// slice, heads of that rank], so what arrives from the ranks in their order is a matrix of all tokens, and what goes
// back from there needs no packing.
#pragma once

#include <cstdint>
#include <functional>

#include "model/decoder/attention_setup.h"
#include "model/decoder/context.h"
#include "model/decoder/layer_activations.h"
#include "model/decoder/pass.h"
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
  // Computes the slice's a.attention from its rotated queries and keys.
  void forward(const DecoderPass& pass, LayerActivations a) const;
  // Computes dqkv from dattention, both of the slice. What forward() exchanged is exchanged again, unless it is in
  // a.own_qkv.
  void backward(const DecoderPass& pass, GradientSink& gradients, LayerActivations a, Tensor dattention,
                Tensor dqkv) const;

 private:
  // Returns the columns of the own heads' queries, keys and values.
  std::int64_t own_width() const;
  struct SliceBytes;
  SliceBytes slice_bytes(const DecoderPass& pass, std::int64_t width) const;
  // Writes what goes to the rank that has these heads: [tokens of the slice, width].
  using PackSlice = std::function<void(Tensor part, const RankHeads& heads)>;
  // `all`, [all tokens, width], becomes what the slices of all ranks have packed for this one.
  void to_heads(const DecoderPass& pass, Tensor all, const PackSlice& pack) const;
  // Brings `all` back: `packed` becomes the parts of all ranks, each [tokens of the slice, width].
  void to_slices(const DecoderPass& pass, Tensor packed, Tensor all) const;
  void qkv_to_heads(const DecoderPass& pass, const LayerActivations& a, Tensor all) const;
  void attention_to_heads(const DecoderPass& pass, Tensor attention, Tensor all) const;
  Ops::Attention own_attention(const DecoderPass& pass, const LayerActivations& a) const;
  AttentionSize own_size(const DecoderPass& pass, const AttentionSpans& spans) const;
  void unpack_gradient(const DecoderPass& pass, Tensor packed, Tensor dqkv) const;

  const DecoderContext& context_;
  const DecoderSpec& spec_;
  Ops& ops_;
  const Joined sinks_;
  const AttentionSetup setup_;
};

}  // namespace so
