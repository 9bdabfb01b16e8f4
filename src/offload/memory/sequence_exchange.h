// The ranks among which the tokens of a micro-batch are split, as the decoder sees them. It knows no ranks otherwise:
// with one exchange its rows of tokens become rows of heads around attention, and with one sum the experts' load is
// that of all tokens.
#pragma once

#include <cstdint>
#include <span>

#include "base/tensor.h"
#include "device/device.h"

namespace so {

class SequenceExchange {
 public:
  virtual ~SequenceExchange() = default;
  virtual int rank() const = 0;  // of the group
  virtual int size() const = 0;

  // Both enqueue on `stream`, in the same order on every rank of the group; a rank that is lost is an error of the
  // stream. Memory must stay until the work has run.
  //
  // Part r of `send`, send_bytes[r] bytes, goes to rank r, and part r of `receive` comes from it. Parts lie one after
  // another, this rank's own among them; the two must not overlap. The longest part that a rank sends or receives is as
  // long on every rank.
  virtual void all_to_all(Stream& stream, Tensor receive, std::span<const std::int64_t> receive_bytes, Tensor send,
                          std::span<const std::int64_t> send_bytes) = 0;
  // values, f32, become their sum over the ranks, added in rank order. `scratch`: f32, [size() - 1, as many].
  virtual void add_up(Stream& stream, Tensor values, Tensor scratch) = 0;
};

}  // namespace so
