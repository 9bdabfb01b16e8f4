// Collectives made of messages between devices and of an addition in rank order.
#pragma once

#include <vector>

#include "ranks/collectives/device_collectives.h"
#include "ranks/collectives/device_peers.h"

namespace so {

class PeerCollectives final : public DeviceCollectives {
 public:
  // `peers`: may be null on a dry device, on which nothing is enqueued. `piece`: elements that are received of each
  // rank at a time, at most.
  PeerCollectives(Device& device, EngineOps& ops, const RankPlace& place, std::unique_ptr<DevicePeers> peers,
                  const CollectiveSizes& sizes, std::int64_t piece);

  void reduce_scatter_sum(Stream& stream, std::span<const SliceSum> sums, Accumulate mode) override;
  void all_gather(Stream& stream, std::span<const SliceGather> gathers) override;

  // Elements of a piece, in whole alignments of slices: what is received of all ranks then takes about 64 MiB. No more
  // than a call has.
  static std::int64_t piece_of(const CollectiveSizes& sizes, int ranks);
  // Bytes that are received of all ranks at a time, at most.
  static std::size_t received_bytes(const CollectiveSizes& sizes, int ranks);

 private:
  // The part of a sum that one exchange carries: the elements of its slices from `begin` on, as many as there is room
  // for.
  struct Part {
    const SliceSum* sum;
    std::int64_t begin, length;  // length: the longest slice's
  };
  void check(const SliceSum& sum) const;
  void reduce(Stream& stream, std::span<const Part> parts, Accumulate mode);

  EngineOps& ops_;
  const RankPlace place_;
  const bool backed_;
  const DType reduced_;
  const std::int64_t piece_;
  const std::unique_ptr<DevicePeers> peers_;
  const Buffer received_;  // of the other ranks, a piece each; unless the peers have memory for that
};

}  // namespace so
