// Messages between GPUs by NCCL.
#include <cstddef>
#include <memory>

#include "collectives/device_peers.h"
#include "collectives/nccl/nccl_communicator.h"

namespace so {
namespace {

class NcclPeers final : public DevicePeers {
 public:
  NcclPeers(Device& device, Communicator& ranks, int most_blocks) : nccl_(device, ranks, most_blocks) {}

  void exchange(Stream& stream, const char* what, Sent send, Received receive) override {
    nccl_.group(stream, what, [&] {
      const RankPlace& place = nccl_.place();
      for (int step = 1; step < place.size;
           ++step) {  // each rank begins with another, so that none is everybody's first
        const int to = (place.rank + step) % place.size, from = (place.rank + place.size - step) % place.size;
        const std::span<const std::byte> out = send[static_cast<std::size_t>(to)];
        const std::span<std::byte> in = receive[static_cast<std::size_t>(from)];
        if (!out.empty()) nccl_.send(out.data(), out.size(), to);
        if (!in.empty()) nccl_.receive(in.data(), in.size(), from);
      }
    });
  }

  void all_gather(Stream& stream, std::span<const Gather> gathers) override {
    nccl_.group(stream, "all_gather", [&] {
      for (const auto& [own, bytes, all] : gathers) nccl_.all_gather(own, bytes, all);
    });
  }

 private:
  NcclCommunicator nccl_;
};

}  // namespace

std::unique_ptr<DevicePeers> make_nccl_peers(Device& device, Communicator& ranks, int most_blocks) {
  return std::make_unique<NcclPeers>(device, ranks, most_blocks);
}

}  // namespace so
