// Collectives on the memory of devices, a rank's each, enqueued on a stream. They give the bits that the Communicator's
// give: sums are made in fp32, in rank order, at one place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/accumulate.h"
#include "base/tensor.h"
#include "device/device.h"
#include "optim/engine_ops.h"
#include "ranks/collectives/route.h"
#include "ranks/collectives/slice_gather.h"
#include "ranks/communicator.h"

namespace so {

// An array of which each rank has values of its own, and this rank is to get the sum over ranks of its slice.
struct SliceSum {
  Tensor values;                         // f32 or bf16, one rank's slice after another's
  std::span<const std::int64_t> counts;  // elements of the slices, by rank
  Tensor own;  // f32 or the values' format, counts[rank] elements; may be this rank's slice of `values`
};

// The collectives of one stream at a time. Every rank makes the same calls in the same order with the same counts. A
// rank that is lost, or that gives up, is an error of the stream's, and reaches what waits for it within the ranks'
// time limit. Counts are by rank, one rank's slice after another's, as the Communicator has them.
class DeviceCollectives {
 public:
  virtual ~DeviceCollectives() = default;

  // Both do what is asked for together at once: a call of its own costs as much time as the transfer of megabytes, and
  // each kernel waits until others leave it a multiprocessor.
  //
  // Enqueues: each sum's `own` becomes the sum over ranks, or that is added to it. It may be the slice of `values`
  // itself if it is overwritten. With Accumulate::add this rank's slice of `values` is undefined afterwards. The values
  // of all have one format, and so have the sums.
  virtual void reduce_scatter_sum(Stream& stream, std::span<const SliceSum> sums, Accumulate mode) = 0;
  // Enqueues: every rank's slices come to their `all`.
  virtual void all_gather(Stream& stream, std::span<const SliceGather> gathers) = 0;
};

// The collectives are made for these sizes, from which their memory follows.
struct CollectiveSizes {
  std::int64_t longest_slice = 0;  // elements of a rank's slice, of any rank, that is reduced
  std::int64_t most_reduced = 0;   // the same of all slices that are reduced in one call; 0: as the longest
  DType reduced = DType::f32;      // what is reduced
  std::size_t most_gathered = 0;   // bytes of a rank's slices that are gathered in one call; 0: nothing is gathered
};

// A collective of the host's, which takes a duplicate of `ranks`. On the CPU device the route is not asked for: its
// memory is the host's. A dry device gets what takes the same memory and does nothing. `gathered_into`: memory in which
// all that is gathered comes to lie, at the same offset on every rank, so that others may write it there themselves;
// null: anywhere. All references must outlive it, and so must the work that was enqueued here. Throws Error on all
// ranks where they cannot be connected.
std::unique_ptr<DeviceCollectives> make_device_collectives(Device& device, EngineOps& ops, Communicator& ranks,
                                                           CollectiveRoute route, const CollectiveSizes& sizes,
                                                           const Buffer* gathered_into = nullptr);

}  // namespace so
