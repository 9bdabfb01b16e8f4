// Ranks of a run. A run on one device is a communicator of one, whose collectives do nothing.
#pragma once

#include <memory>
#include <span>

namespace so {

// Collectives on host memory. Every rank must make the same calls in the same order; a call returns when its result is
// in place on this rank.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Element-wise sum over ranks, in rank order, so that every rank gets the same bits.
  virtual void all_reduce_sum(std::span<double> values) = 0;
  virtual void barrier() = 0;
};

std::unique_ptr<Communicator> make_single_communicator();

}  // namespace so
