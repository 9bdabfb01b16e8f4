// Collectives on memory that is the host's (the CPU device): the Communicator's, as work of a stream.
#pragma once

#include "ranks/collectives/device_collectives.h"

namespace so {

class CpuCollectives final : public DeviceCollectives {
 public:
  CpuCollectives(Device& device, Communicator& ranks, const CollectiveSizes& sizes);

  void reduce_scatter_sum(Stream& stream, std::span<const SliceSum> sums, Accumulate mode) override;
  void all_gather(Stream& stream, std::span<const SliceGather> gathers) override;

 private:
  void reduce_one(Stream& stream, const SliceSum& reduced, Accumulate mode);

  const std::unique_ptr<Communicator> ranks_;
  const Buffer sum_;  // of a slice that is to be added or rounded, where its values are bf16
};

}  // namespace so
