#include "collectives/device_collectives.h"

#include <algorithm>

#include "base/error.h"
#include "collectives/cpu_collectives.h"
#include "collectives/device_peers.h"
#include "collectives/peer_collectives.h"
#include "device/backend.h"

namespace so {

std::unique_ptr<DeviceCollectives> make_device_collectives(Device& device, EngineOps& ops, Communicator& ranks,
                                                           CollectiveRoute route, const CollectiveSizes& sizes) {
  if (!backend_of(device).own_memory) return std::make_unique<CpuCollectives>(device, ranks, sizes);
  const std::int64_t piece = PeerCollectives::piece_of(sizes, ranks.size());
  constexpr std::size_t staged = std::size_t{8} << 20;
  const std::size_t longest = std::max(static_cast<std::size_t>(piece) * size_of(sizes.reduced), sizes.longest_gather);
  // These run beside matrix products for most of a step, and have time: eight blocks move what a step exchanges many
  // times over, and leave the products their multiprocessors.
  const PeerLimits limits{.staged_piece = std::min(staged, std::max<std::size_t>(longest, 1)), .nccl_blocks = 8};
  return std::make_unique<PeerCollectives>(device, ops, ranks.place(), make_peers(device, ranks, route, limits), sizes,
                                           piece);
}

std::unique_ptr<DevicePeers> make_peers(Device& device, Communicator& ranks, CollectiveRoute route,
                                        const PeerLimits& limits) {
  switch (route) {
    case CollectiveRoute::nccl:
      return device.backed() ? make_nccl_peers(device, ranks, limits.nccl_blocks) : nullptr;
    case CollectiveRoute::host:
      return make_staged_peers(device, ranks, limits.staged_piece);
  }
  throw Bug("a route that has no peers");
}

}  // namespace so
