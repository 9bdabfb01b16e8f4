// Internal to the decoder: weights that go by heads, where the tokens are split among ranks and a rank has some of the
// heads (slice_messages.h), and their gradients.
#pragma once

#include <cstdint>
#include <span>

#include "model/decoder/context.h"
#include "model/decoder/pass.h"
#include "offload/memory/parameter_source.h"

namespace so {

// Rows of a weight that belong to a rank's heads: where they lie in that of all, and in that of these.
struct OwnRows {
  std::int64_t of_all = 0, of_own = 0, count = 0;
};

// Returns the gradient's rows of some heads; where it is not added to, those of the others become 0.
GradientSink::Target own_gradient(Stream& stream, const GradientSink::Target& target, std::int64_t first,
                                  std::int64_t count);
// Puts the own rows together, in the caller's scope of the arena, in the activations' format, which weights have (in a
// dry run they may have another).
Tensor own_weight(const DecoderContext& context, const DecoderPass& pass, const char* name, Tensor all,
                  std::span<const OwnRows> rows);
// Acquires memory for the gradient of own_weight(), f32, there too.
Tensor acquire_own_gradient(const DecoderPass& pass, const char* name, Tensor own);
// Writes that to its places in the gradient of all; where it is not added to, the others become 0.
void write_own_gradient(Ops& ops, Stream& stream, const GradientSink::Target& whole, Tensor own,
                        std::span<const OwnRows> rows);

}  // namespace so
