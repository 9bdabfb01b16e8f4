#include "collectives/device_collectives.h"

#include <algorithm>

#include "collectives/device_peers.h"
#include "collectives/host_collectives.h"
#include "collectives/peer_collectives.h"

namespace so {

std::unique_ptr<DeviceCollectives> make_device_collectives(Device& device, EngineOps& ops, Communicator& ranks,
                                                           CollectiveRoute route, const CollectiveSizes& sizes) {
  if (device.kind() == DeviceKind::cpu) return std::make_unique<HostCollectives>(device, ranks, sizes);
  const std::int64_t piece = PeerCollectives::piece_of(sizes, ranks.size());
  std::unique_ptr<DevicePeers> peers;
  if (route == CollectiveRoute::host) {
    constexpr std::size_t staged = std::size_t{8} << 20;
    const std::size_t longest =
        std::max(static_cast<std::size_t>(piece) * size_of(sizes.reduced), sizes.longest_gather);
    peers = make_staged_peers(device, ranks, std::min(staged, std::max<std::size_t>(longest, 1)));
  }
  // These run beside matrix products for most of a step, and have time: eight blocks move what a step exchanges many
  // times over, and leave the products their multiprocessors.
  constexpr int nccl_blocks = 8;
  if (route == CollectiveRoute::nccl && device.backed()) peers = make_nccl_peers(device, ranks, nccl_blocks);
  return std::make_unique<PeerCollectives>(device, ops, ranks.place(), std::move(peers), sizes, piece);
}

}  // namespace so
