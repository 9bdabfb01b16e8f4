// The few operations on device memory that an optimizer's engine needs beside AdamW: they link without the libraries of
// a model's operations (ops/ops.h), so the engine does too.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/accumulate.h"
#include "base/tensor.h"
#include "device/device.h"

namespace so {

// Sum of squares and count of non-finite elements of a gradient, in device memory.
struct GradStats {
  double sum_of_squares = 0;  // over the finite and non-finite alike: meaningless unless non_finite == 0
  std::uint64_t non_finite = 0;
};

// What is asked for together takes a GPU few launches, which matters on a stream whose kernels wait for those of
// another to leave the multiprocessors.
struct StatsOf {
  GradStats* out;  // device memory
  Tensor grad;     // f32 or bf16
};
struct RankSum {
  Tensor out;     // f32
  Tensor own;     // this rank's values, f32 or bf16; may be `out`
  Tensor others;  // those of the other ranks in their order, a row each ([0, n] if there are none); as `own`
};

struct DeviceCast {
  Tensor out, in;
};

struct DeviceCopy {
  std::byte* to;
  const std::byte* from;
  std::size_t bytes;
};

// An operation is enqueued on the stream and returns; its tensors must live until it has run. Arguments are checked
// when it is enqueued (Bug). It keeps no memory of its own, so one instance serves any number of streams and threads.
class EngineOps {
 public:
  virtual ~EngineOps() = default;

  // Gradients that grad_stats() searches in two kernels on a GPU; their arguments are 2 KB.
  static constexpr int stats_at_a_time = 64;
  // Bytes of scratch that grad_stats() needs for a gradient of `elements` elements.
  static std::size_t stats_scratch(std::int64_t elements);
  // *out = stats of grad, the sum in a fixed order, the same on every device, for each of `gradients`, which have one
  // format. scratch: u8, at least the sum of their stats_scratch(), aligned to GradStats.
  virtual void grad_stats(Stream&, std::span<const StatsOf> gradients, Tensor scratch) = 0;
  void grad_stats(Stream& stream, GradStats* out, Tensor grad, Tensor scratch) {
    grad_stats(stream, std::array{StatsOf{out, grad}}, scratch);
  }
  // out = in converted, f32 <-> bf16 (round to nearest even), same number of elements, for each of `casts`, all of one
  // direction.
  virtual void cast(Stream&, std::span<const DeviceCast> casts) = 0;
  void cast(Stream& stream, Tensor out, Tensor in) { cast(stream, std::array{DeviceCast{out, in}}); }
  // Copies within the device's memory; none overlaps what another writes.
  virtual void copy(Stream&, std::span<const DeviceCopy> copies) = 0;
  // out += in, each f32 or bf16, same number of elements: added in fp32, rounded to out's format once.
  virtual void add(Stream&, Tensor out, Tensor in) = 0;
  // The sum of the values that ranks have for the same elements, added in fp32 in rank order: out = that sum, or
  // out + that sum, for each of `sums`, whose values have one format, and so have their `out`, fp32 or the values';
  // `rank` is this rank's number. A bf16 `out` is rounded once, at the end. The first rank's values are taken as they
  // are, so one rank's sum is its own values, -0.0 included.
  virtual void sum_of_ranks(Stream&, std::span<const RankSum> sums, Accumulate mode, int rank) = 0;
  void sum_of_ranks(Stream& stream, Tensor out, Accumulate mode, Tensor own, Tensor others, int rank) {
    sum_of_ranks(stream, std::array{RankSum{out, own, others}}, mode, rank);
  }
};

// The implementation for the device's kind; for a dry device, one that does nothing.
std::unique_ptr<EngineOps> make_engine_ops(Device& device);

}  // namespace so
