// Messages between devices by way of pinned host memory and the ranks' communicator.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "ranks/collectives/device_peers.h"

namespace so {
namespace {

class StagedPeers final : public DevicePeers {
 public:
  StagedPeers(Device& device, Communicator& ranks, std::size_t piece)
      : ranks_(device.backed() ? ranks.duplicate() : nullptr),
        place_(ranks.place()),
        piece_(piece),
        out_(device.allocate(MemoryKind::pinned, piece * others(), "rank exchange")),
        in_(device.allocate(MemoryKind::pinned, piece * others(), "rank exchange")) {
    SO_CHECK(piece >= 1, "pieces of {} bytes", piece);
  }

  void exchange(Stream& stream, const char* what, std::span<const PeerMessages> messages) override {
    for (const PeerMessages& message : messages) {
      std::size_t longest = 0;  // every rank makes as many pieces
      for (std::size_t r = 0; r < size(); ++r)
        longest = std::max({longest, message.send[r].size(), message.receive[r].size()});
      for (std::size_t begin = 0; begin < longest; begin += piece_) piece(stream, what, message, begin);
    }
  }

  void all_gather(Stream& stream, std::span<const SliceGather> gathers) override {
    for (const auto& [own, bytes, all] : gathers) {
      const std::span slice(own, static_cast<std::size_t>(bytes[self()]));
      const PeerMessages message{.send = std::vector(size(), slice), .receive = slices_of(all, bytes)};
      if (message.receive[self()].data() != own && !slice.empty())
        stream.copy(message.receive[self()].data(), own, slice.size());
      exchange(stream, "all_gather", std::span(&message, 1));
    }
  }

 private:
  std::size_t size() const { return static_cast<std::size_t>(place_.size); }
  std::size_t self() const { return static_cast<std::size_t>(place_.rank); }
  std::size_t others() const { return size() - 1; }
  // Lengths of the pieces that begin at `begin` of each message.
  template <class Messages>
  std::vector<std::size_t> lengths(const Messages& messages, std::size_t begin) const {
    std::vector<std::size_t> all(size(), 0);
    for (std::size_t r = 0; r < size(); ++r)
      if (r != self()) all[r] = std::min(messages[r].size() - std::min(messages[r].size(), begin), piece_);
    return all;
  }

  void piece(Stream& stream, const char* what, const PeerMessages& message, std::size_t begin) {
    const auto& send = message.send;
    const auto& receive = message.receive;
    const std::vector<std::size_t> sent = lengths(send, begin), received = lengths(receive, begin);
    auto* out = static_cast<std::byte*>(out_.data());
    for (std::size_t r = 0; r < size(); out += sent[r], ++r)
      if (sent[r] > 0) stream.copy(out, send[r].data() + begin, sent[r]);
    stream.await(what, [this, sent, received] { swap(sent, received); });
    const auto* in = static_cast<const std::byte*>(in_.data());
    for (std::size_t r = 0; r < size(); in += received[r], ++r)
      if (received[r] > 0) stream.copy(receive[r].data() + begin, in, received[r]);
  }

  // Lengths by rank; this rank's own is 0.
  void swap(const std::vector<std::size_t>& sent, const std::vector<std::size_t>& received) {
    const auto bytes = [](const std::vector<std::size_t>& lengths) {
      return std::vector<std::int64_t>(lengths.begin(), lengths.end());
    };
    const auto parts = [](const Buffer& buffer, const std::vector<std::size_t>& lengths) {
      return std::span(static_cast<std::byte*>(buffer.data()),
                       std::accumulate(lengths.begin(), lengths.end(), std::size_t{0}));
    };
    ranks_->all_to_all(parts(out_, sent), bytes(sent), parts(in_, received), bytes(received));
  }

  const std::unique_ptr<Communicator> ranks_;
  const RankPlace place_;
  const std::size_t piece_;
  const Buffer out_, in_;  // pinned: a piece for each other rank
};

}  // namespace

std::unique_ptr<DevicePeers> make_staged_peers(Device& device, Communicator& ranks, std::size_t piece) {
  return std::make_unique<StagedPeers>(device, ranks, piece);
}

}  // namespace so
