// Collectives made of messages between devices and of an addition in rank order.
#pragma once

#include <vector>

#include "collectives/device_collectives.h"
#include "collectives/device_peers.h"

namespace so {

class PeerCollectives final : public DeviceCollectives {
 public:
  // `peers`: may be null on a dry device, on which nothing is enqueued. `piece`: elements of a slice that are received
  // of each rank at a time, at most.
  PeerCollectives(Device& device, EngineOps& ops, const RankPlace& place, std::unique_ptr<DevicePeers> peers,
                  const CollectiveSizes& sizes, std::int64_t piece);

  void reduce_scatter_sum(Stream& stream, Tensor values, std::span<const std::int64_t> counts, Tensor own,
                          Accumulate mode) override;
  void all_gather(Stream& stream, std::span<const SliceGather> gathers) override;

  // Elements of a piece: so many that what is received of all ranks takes about 64 MiB, and no more than a slice has.
  static std::int64_t piece_of(const CollectiveSizes& sizes, int ranks);

 private:
  EngineOps& ops_;
  const RankPlace place_;
  const bool backed_;
  const DType reduced_;
  const std::int64_t piece_;
  const Buffer received_;  // of the other ranks, a piece each
  const std::unique_ptr<DevicePeers> peers_;
};

}  // namespace so
