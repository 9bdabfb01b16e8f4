#include "model/decoder/slice_messages.h"

#include <vector>

#include "base/error.h"
#include "base/sequence_slice.h"
#include "offload/memory/sequence_exchange.h"

namespace so {

int SliceMessages::rank() const {
  SO_CHECK(context_.exchange, "a slice of a batch, and no ranks that have the others");
  return context_.exchange->rank();
}

int SliceMessages::ranks() const {
  SO_CHECK(context_.exchange, "a slice of a batch, and no ranks that have the others");
  return context_.exchange->size();
}

// Bytes of `width` columns that each rank has of its slice, and that this rank has for each.
struct SliceMessages::SliceBytes {
  std::vector<std::int64_t> of_slices, of_own;
};

SliceMessages::SliceBytes SliceMessages::slice_bytes(const DecoderPass& pass, std::int64_t width) const {
  const std::int64_t all = pass.batch.all_tokens(),
                     row = width * static_cast<std::int64_t>(size_of(context_.activations()));
  SliceBytes bytes;
  for (int r = 0; r < ranks(); ++r) {
    bytes.of_slices.push_back((slice_begin(all, ranks(), r + 1) - slice_begin(all, ranks(), r)) * row);
    bytes.of_own.push_back(pass.tokens() * row);
  }
  SO_CHECK(bytes.of_slices[static_cast<std::size_t>(rank())] == pass.tokens() * row,
           "a slice of {} tokens of {}, rank {} of {}", pass.tokens(), all, rank(), ranks());
  return bytes;
}

void SliceMessages::to_heads(const DecoderPass& pass, Tensor all, const PackSlice& pack) const {
  Arena::Scope scope(pass.arena);
  const std::int64_t n = pass.tokens(), width = all.dim(1);
  const SliceBytes bytes = slice_bytes(pass, width);
  const Tensor packed = pass.arena.acquire("slice for ranks", context_.activations(), {ranks() * n, width});
  for (int r = 0; r < ranks(); ++r) pack(packed.rows(r * n, n), r);
  context_.exchange->all_to_all(pass.stream, all, bytes.of_slices, packed, bytes.of_own);
}

void SliceMessages::to_slices(const DecoderPass& pass, Tensor packed, Tensor all) const {
  const SliceBytes bytes = slice_bytes(pass, all.dim(1));
  context_.exchange->all_to_all(pass.stream, packed, bytes.of_own, all, bytes.of_slices);
}

}  // namespace so
