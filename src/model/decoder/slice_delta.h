// Internal to the decoder: the delta rule where the tokens are split among ranks (slice_messages.h). A rank has some
// key heads with their value heads; the convolution goes by columns, so each rank convolves those of its own heads.
#pragma once

#include <cstdint>

#include "model/decoder/context.h"
#include "model/decoder/delta_part.h"
#include "model/decoder/layer_activations.h"
#include "model/decoder/pass.h"
#include "model/decoder/slice_messages.h"

namespace so {

// For batches with DeviceBatch::is_slice(), of a decoder that has an exchange. forward() and backward() are collective:
// all ranks call them in the same order.
class SliceDelta {
 public:
  SliceDelta(const DecoderContext& context, std::int64_t layer);

  // Acquires what the rule reads of the own heads, if it is empty, in the caller's scope of the arena.
  void complete(const DecoderPass& pass, LayerActivations& a) const;
  // Computes the slice's a.mixed from its projections.
  void forward(const DecoderPass& pass, LayerActivations a) const;
  // Computes the gradient of the projections, but for the gate's, from that of a.mixed, both of the slice, and the
  // weights' of the own heads; those of the other heads are 0. What forward() exchanged is exchanged again, unless it
  // is in a.own_qkv.
  void backward(const DecoderPass& pass, LayerActivations a, Tensor dmixed, Tensor dprojected,
                const DeltaTargets& targets) const;

 private:
  std::int64_t k_heads() const { return delta_.k_heads / messages_.ranks(); }  // of each rank
  std::int64_t v_heads() const { return delta_.v_heads / messages_.ranks(); }
  // Calls copy(column of the slice's projections, column of a rank's, head count, head size) for each piece of a row
  // that goes to the rank.
  template <class Copy>
  void for_each_piece(int rank, const Copy& copy) const;
  std::int64_t own_width() const;
  DeltaPart own_part(const LayerActivations& a) const;
  // The weights of the own heads; those of the convolution are put together in the arena.
  void add_weights(const DecoderPass& pass, DeltaPart& part) const;
  void projections_to_heads(const DecoderPass& pass, const LayerActivations& a) const;

  const DecoderContext& context_;
  const DeltaSpec& delta_;
  Ops& ops_;
  const ParameterIndex::Layer& p_;
  const SliceMessages messages_;
};

}  // namespace so
