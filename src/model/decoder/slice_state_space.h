// Internal to the decoder: a state space where the tokens are split among ranks (slice_messages.h). A rank has some
// groups with their heads; the convolution goes by columns, so each rank convolves those of its own heads.
#pragma once

#include <array>
#include <cstdint>

#include "model/decoder/context.h"
#include "model/decoder/layer_activations.h"
#include "model/decoder/pass.h"
#include "model/decoder/slice_messages.h"
#include "model/decoder/slice_weights.h"
#include "model/decoder/state_space_part.h"

namespace so {

// For batches with DeviceBatch::is_slice(), of a decoder that has an exchange. forward() and backward() are collective:
// all ranks call them in the same order.
class SliceStateSpace {
 public:
  SliceStateSpace(const DecoderContext& context, std::int64_t layer);

  // Acquires what the state space reads of the own heads, if it is empty, in the caller's scope of the arena.
  void complete(const DecoderPass& pass, LayerActivations& a) const;
  // Computes the slice's a.mixed from its projections.
  void forward(const DecoderPass& pass, LayerActivations a) const;
  // Computes the gradient of the projections, but for the gate's, from that of a.mixed, both of the slice, and the
  // weights' of the own heads; those of the other heads are 0. What forward() exchanged is exchanged again, unless it
  // is in a.own_qkv.
  void backward(const DecoderPass& pass, LayerActivations a, Tensor dmixed, Tensor dprojected,
                const StateSpaceTargets& targets) const;

 private:
  std::int64_t groups() const { return space_.groups / messages_.ranks(); }  // of each rank
  std::int64_t heads() const { return space_.heads / messages_.ranks(); }
  // Calls copy(column of the slice's projections, column of a rank's, head count, head size) for each piece of a row
  // that goes to the rank.
  template <class Copy>
  void for_each_piece(int rank, const Copy& copy) const;
  std::int64_t own_width() const;
  std::array<OwnRows, 3> convolution_rows() const;
  // `a` has what is acquired for it; the weights of the own heads are put together in the arena.
  StateSpacePart own_part(const DecoderPass& pass, const LayerActivations& a) const;
  void projections_to_heads(const DecoderPass& pass, const LayerActivations& a) const;

  const DecoderContext& context_;
  const StateSpaceSpec& space_;
  Ops& ops_;
  const ParameterIndex::Layer& p_;
  const SliceMessages messages_;
};

}  // namespace so
