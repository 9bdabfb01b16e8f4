// Internal to the decoder: where the tokens are split among ranks, each rank has a slice of the tokens with all heads,
// and mixes tokens for some of the heads over all tokens. What goes to a rank lies together, [tokens of the slice,
// heads of that rank], so what arrives from the ranks in their order is a matrix of all tokens, and what goes back from
// there needs no packing.
#pragma once

#include <cstdint>
#include <functional>

#include "model/decoder/context.h"
#include "model/decoder/pass.h"

namespace so {

// For batches with DeviceBatch::is_slice(), of a decoder that has an exchange. to_heads() and to_slices() are
// collective: all ranks call them in the same order.
class SliceMessages {
 public:
  explicit SliceMessages(const DecoderContext& context) : context_(context) {}

  int rank() const;
  int ranks() const;
  // Writes what goes to a rank: [tokens of the slice, width].
  using PackSlice = std::function<void(Tensor part, int rank)>;
  // `all`, [all tokens, width], becomes what the slices of all ranks have packed for this one.
  void to_heads(const DecoderPass& pass, Tensor all, const PackSlice& pack) const;
  // Brings `all` back: `packed` becomes the parts of all ranks, each [tokens of the slice, width].
  void to_slices(const DecoderPass& pass, Tensor packed, Tensor all) const;

 private:
  struct SliceBytes;
  SliceBytes slice_bytes(const DecoderPass& pass, std::int64_t width) const;

  const DecoderContext& context_;
};

}  // namespace so
