#include "offload/sequence_group.h"

#include <limits>
#include <vector>

#include "base/error.h"
#include "device/backend.h"
#include "ranks/together.h"

namespace so {
namespace {

// Attention waits for the messages, so they have all of NCCL's blocks that help. They are as long as a micro-batch
// makes them.
constexpr PeerLimits group_limits{
    .staged_piece = std::size_t{8} << 20, .nccl_blocks = 0, .longest = std::numeric_limits<std::size_t>::max()};

std::unique_ptr<DevicePeers> make_group_peers(Device& device, Communicator& ranks, Communicator& group,
                                              CollectiveRoute route) {
  std::unique_ptr<DevicePeers> peers;
  const auto make = [&] { peers = make_peers(device, group, route, group_limits); };
  // The ranks of a group fail alike, and so none waits for another in here; the other groups hear of it.
  if (device.backed())
    together(ranks, make);
  else
    make();
  return peers;
}

}  // namespace

SequenceGroup::SequenceGroup(Communicator& ranks, int size, Device& device, CollectiveRoute route)
    : group_(ranks.split(size)) {
  if (size == 1 || !backend_of(device).own_processors) return;
  ops_ = make_engine_ops(device);
  peers_ = make_group_peers(device, ranks, *group_, route);
}

void SequenceGroup::all_to_all(Stream& stream, Tensor receive, std::span<const std::int64_t> receive_bytes, Tensor send,
                               std::span<const std::int64_t> send_bytes) {
  const std::span<std::byte> to(static_cast<std::byte*>(receive.data()), receive.bytes());
  const std::span<const std::byte> from(static_cast<const std::byte*>(send.data()), send.bytes());
  if (!ops_) {
    stream.host("all_to_all", [this, to, from, received = std::vector(receive_bytes.begin(), receive_bytes.end()),
                               sent = std::vector(send_bytes.begin(), send_bytes.end())] {
      group_->all_to_all(from, sent, to, received);
    });
    return;
  }
  if (!stream.device().backed()) return;
  PeerMessages messages;
  auto& parts = messages.send;
  auto& places = messages.receive;
  std::size_t sent = 0, received = 0;
  for (std::size_t r = 0; r < send_bytes.size(); ++r) {
    parts.push_back(from.subspan(sent, static_cast<std::size_t>(send_bytes[r])));
    places.push_back(to.subspan(received, static_cast<std::size_t>(receive_bytes[r])));
    sent += parts.back().size();
    received += places.back().size();
  }
  const auto self = static_cast<std::size_t>(rank());
  SO_CHECK(parts[self].size() == places[self].size(), "{} bytes for itself, which expects {}", parts[self].size(),
           places[self].size());
  stream.copy(places[self].data(), parts[self].data(), parts[self].size());
  peers_->exchange(stream, "all_to_all", std::span(&messages, 1));
}

void SequenceGroup::add_up(Stream& stream, Tensor values, Tensor scratch) {
  SO_CHECK(scratch.size() == (size() - 1) * values.size(), "{} elements for those of {} other ranks", scratch.size(),
           size() - 1);
  if (!ops_) {
    stream.host("all_reduce", [this, sum = values.span<float>()] { group_->all_reduce_sum(sum); });
    return;
  }
  if (!stream.device().backed()) return;
  const std::span<std::byte> own(static_cast<std::byte*>(values.data()), values.bytes());
  PeerMessages messages{.send = std::vector<std::span<const std::byte>>(static_cast<std::size_t>(size()), own),
                        .receive = {}};
  auto* next = static_cast<std::byte*>(scratch.data());
  for (int r = 0; r < size(); ++r) {
    messages.receive.emplace_back(r == rank() ? own.data() : next, own.size());
    if (r != rank()) next += own.size();
  }
  peers_->exchange(stream, "all_reduce", std::span(&messages, 1));
  ops_->sum_of_ranks(stream, values, Accumulate::overwrite, values,
                     Tensor(scratch.data(), scratch.dtype(), {size() - 1, values.size()}), rank());
}

}  // namespace so
