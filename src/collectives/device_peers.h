// Messages between the devices' memory of ranks, of which collectives are made (peer_collectives.h).
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "collectives/route.h"
#include "collectives/slice_gather.h"
#include "device/device.h"
#include "ranks/communicator.h"

namespace so {

class DevicePeers {
 public:
  virtual ~DevicePeers() = default;

  // Enqueues: send[r] goes to rank r and receive[r] comes from it, for each other rank. The ranks agree on the lengths;
  // empty messages are not sent. Both have an entry for every rank. This rank's own are not sent either, but count for
  // the longest of all entries, which must be the same on every rank.
  using Sent = std::span<const std::span<const std::byte>>;
  using Received = std::span<const std::span<std::byte>>;
  virtual void exchange(Stream& stream, const char* what, Sent send, Received receive) = 0;
  // Enqueues all of them, as DeviceCollectives has them.
  virtual void all_gather(Stream& stream, std::span<const SliceGather> gathers) = 0;
};

// A route reads the member that is its own.
struct PeerLimits {
  std::size_t staged_piece;  // host: bytes of a rank that are on their way at a time, at most
  int nccl_blocks;           // nccl: see make_nccl_peers()
};
// By the route, a collective. Null on a dry device for NCCL, which takes no memory that is counted.
std::unique_ptr<DevicePeers> make_peers(Device& device, Communicator& ranks, CollectiveRoute route,
                                        const PeerLimits& limits);

// Over NCCL, whose kernels have `most_blocks` thread blocks at most (0: as many as NCCL takes). Each keeps a
// multiprocessor from what runs beside it, and has buffers for each peer. A collective; throws Error on all ranks
// alike.
std::unique_ptr<DevicePeers> make_nccl_peers(Device& device, Communicator& ranks, int most_blocks);
// Through pinned memory of the host, in pieces of `piece` bytes of a rank at most.
std::unique_ptr<DevicePeers> make_staged_peers(Device& device, Communicator& ranks, std::size_t piece);

}  // namespace so
