#include "ranks/collectives/device_collectives.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "device/backend.h"
#include "device/gpu_place.h"
#include "ranks/collectives/cpu_collectives.h"
#include "ranks/collectives/device_peers.h"
#include "ranks/collectives/peer_collectives.h"

namespace so {
namespace {

// Several places a rank, so that pieces are sent while others are taken, in 64 MiB unless there are many ranks.
PiecePlaces make_piece_places(Device& device, int ranks, std::size_t longest) {
  constexpr std::size_t all = std::size_t{64} << 20, most = std::size_t{16} << 20, least = std::size_t{1} << 20;
  const std::size_t places = static_cast<std::size_t>(std::max(ranks - 1, 1)) * PiecePlaces::of_a_rank;
  const std::size_t piece = std::clamp(std::min(all / places, longest), least, most) / 4096 * 4096;
  return {.piece = piece, .memory = device.allocate(MemoryKind::device, places * piece, "rank exchange")};
}

Arrivals make_arrivals(Device& device, std::size_t of_an_exchange) {
  if (of_an_exchange == 0) return {};
  const std::size_t bytes = (of_an_exchange + 4095) / 4096 * 4096;
  return {.of_an_exchange = bytes,
          .memory = device.allocate(MemoryKind::device, std::max(2 * bytes, shareable_bytes), "rank exchange")};
}

// Takes the memory that copies between GPUs take. Nothing is enqueued on a dry device.
class DryPeers final : public DevicePeers {
 public:
  DryPeers(PiecePlaces places, Arrivals arrivals) : places_(std::move(places)), arrivals_(std::move(arrivals)) {}
  bool has_arrivals() const override { return arrivals_.of_an_exchange > 0; }
  void exchange(Stream&, const char*, std::span<const PeerMessages>) override { throw Bug("messages of a dry device"); }
  void all_gather(Stream&, std::span<const SliceGather>) override { throw Bug("messages of a dry device"); }

 private:
  const PiecePlaces places_;
  const Arrivals arrivals_;
};

}  // namespace

std::unique_ptr<DeviceCollectives> make_device_collectives(Device& device, EngineOps& ops, Communicator& ranks,
                                                           CollectiveRoute route, const CollectiveSizes& sizes,
                                                           const Buffer* gathered_into) {
  if (!backend_of(device).own_processors) return std::make_unique<CpuCollectives>(device, ranks, sizes);
  const std::int64_t piece = PeerCollectives::piece_of(sizes, ranks.size());
  constexpr std::size_t staged = std::size_t{8} << 20;
  const std::size_t longest = std::max(static_cast<std::size_t>(piece) * size_of(sizes.reduced), sizes.most_gathered);
  const bool shared = gathered_into != nullptr && gathered_into->bytes() >= shareable_bytes;
  // These run beside matrix products for most of a step, and have time: eight blocks move what a step exchanges many
  // times over, and leave the products their multiprocessors.
  const PeerLimits limits{.staged_piece = std::min(staged, std::max<std::size_t>(longest, 1)),
                          .nccl_blocks = 8,
                          .longest = sizes.most_gathered,
                          .arrivals = PeerCollectives::received_bytes(sizes, ranks.size()),
                          .in_pieces = sizes.most_gathered > 0 && !shared,
                          .gathered_into = shared ? gathered_into : nullptr};
  return std::make_unique<PeerCollectives>(device, ops, ranks.place(), make_peers(device, ranks, route, limits), sizes,
                                           piece);
}

std::unique_ptr<DevicePeers> make_peers(Device& device, Communicator& ranks, CollectiveRoute route,
                                        const PeerLimits& limits) {
  switch (route) {
    case CollectiveRoute::automatic:
      break;
    case CollectiveRoute::nccl:
      return device.backed() ? make_nccl_peers(device, ranks, limits.nccl_blocks) : nullptr;
    case CollectiveRoute::p2p: {
      PiecePlaces places;
      if (limits.in_pieces) places = make_piece_places(device, ranks.size(), limits.longest);
      Arrivals arrivals = make_arrivals(device, limits.arrivals);
      if (!device.backed()) return std::make_unique<DryPeers>(std::move(places), std::move(arrivals));
      return make_copied_peers(device, ranks, std::move(places), std::move(arrivals), limits.gathered_into);
    }
    case CollectiveRoute::host:
      return make_staged_peers(device, ranks, limits.staged_piece);
  }
  throw Bug("a route that is not settled");
}

}  // namespace so
