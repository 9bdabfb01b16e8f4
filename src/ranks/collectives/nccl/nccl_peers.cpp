// Messages between GPUs by NCCL.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "ranks/collectives/device_peers.h"
#include "ranks/collectives/nccl/nccl_communicator.h"

namespace so {
namespace {

class NcclPeers final : public DevicePeers {
 public:
  NcclPeers(Device& device, Communicator& ranks, int most_blocks) : nccl_(device, ranks, most_blocks) {}

  void exchange(Stream& stream, const char* what, std::span<const PeerMessages> messages) override {
    nccl_.group(stream, what, [&] {
      for (const PeerMessages& message : messages) exchange_in_group(message.send, message.receive);
    });
  }

  // Slices that differ in length are messages, which go in the same group.
  void all_gather(Stream& stream, std::span<const SliceGather> gathers) override {
    const auto self = static_cast<std::size_t>(nccl_.place().rank);
    std::vector<bool> even;
    for (const SliceGather& gather : gathers) {
      const std::span<std::byte> own = slices_of(gather.all, gather.bytes)[self];
      even.push_back(std::adjacent_find(gather.bytes.begin(), gather.bytes.end(), std::not_equal_to<>()) ==
                     gather.bytes.end());
      if (!even.back() && own.data() != gather.own && !own.empty()) stream.copy(own.data(), gather.own, own.size());
    }
    nccl_.group(stream, "all_gather", [&] {
      for (std::size_t i = 0; i < gathers.size(); ++i) {
        const SliceGather& gather = gathers[i];
        const auto bytes = static_cast<std::size_t>(gather.bytes[self]);
        if (even[i]) {
          if (bytes > 0) nccl_.all_gather(gather.own, bytes, gather.all);
          continue;
        }
        const std::vector<std::span<const std::byte>> send(gather.bytes.size(), std::span(gather.own, bytes));
        exchange_in_group(send, slices_of(gather.all, gather.bytes));
      }
    });
  }

 private:
  void exchange_in_group(std::span<const std::span<const std::byte>> send,
                         std::span<const std::span<std::byte>> receive) {
    const RankPlace& place = nccl_.place();
    for (int step = 1; step < place.size; ++step) {  // each rank begins with another, so that none is everybody's first
      const int to = (place.rank + step) % place.size, from = (place.rank + place.size - step) % place.size;
      const std::span<const std::byte> out = send[static_cast<std::size_t>(to)];
      const std::span<std::byte> in = receive[static_cast<std::size_t>(from)];
      if (!out.empty()) nccl_.send(out.data(), out.size(), to);
      if (!in.empty()) nccl_.receive(in.data(), in.size(), from);
    }
  }

  NcclCommunicator nccl_;
};

}  // namespace

std::unique_ptr<DevicePeers> make_nccl_peers(Device& device, Communicator& ranks, int most_blocks) {
  return std::make_unique<NcclPeers>(device, ranks, most_blocks);
}

}  // namespace so
