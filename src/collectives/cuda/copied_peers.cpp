// Messages between GPUs of one host by copies into each other's memory, which take no multiprocessor from what runs
// beside them.
//
// Each rank has places for the pieces of each other rank. The sender copies a piece into the next place, over the link
// between the GPUs, and says in a word that both see how many pieces it has sent; the receiver's stream waits for that
// number, copies what is in the piece to where it belongs, and says how many it has taken, for which the sender waits
// before it uses a place again. Sending has a stream of its own, so that pieces go both ways at once. Short messages
// share a piece, since the copy out of it is a kernel, which has to wait for its turn beside others.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "collectives/cuda/collective_watch.h"
#include "collectives/device_peers.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/peer_memory.h"
#include "device/cuda/shared_words.h"
#include "device/cuda/stream_values.h"
#include "device/wait_on_exit.h"
#include "optim/engine_ops.h"
#include "ranks/together.h"

namespace so {
namespace {

class CopiedPeers final : public DevicePeers {
 public:
  CopiedPeers(Device& device, Communicator& ranks, PiecePlaces places)
      : device_(device),
        ops_(make_engine_ops(device)),
        places_(std::move(places)),
        closing_(ranks.duplicate()),
        rank_(ranks.rank()) {
    std::unique_ptr<Communicator> watched = ranks.duplicate();
    const auto size = static_cast<std::size_t>(ranks.size());
    const std::vector<std::string> shared = gather_texts(ranks, [&] {
      require_stream_values();
      device.make_current();
      return share_memory(places_.memory);
    });
    const int count = 2 * ranks.size() * ranks.size();
    const std::string name = on_first_rank(ranks, [&] {
      words_ = std::make_unique<SharedWords>(count);
      return words_->name();
    });
    together(ranks, [&] {
      if (!words_) words_ = std::make_unique<SharedWords>(name, count);
      for (std::size_t r = 0; r < size; ++r) peers_.push_back(open(shared[r], static_cast<int>(r)));
      out_ = device.create_stream("send to ranks");
      ready_ = device.create_event();
      sent_all_ = device.create_event();
    });
    words_->unlink();
    sent_.assign(size, 0);
    received_.assign(size, 0);
    watch_ = std::make_unique<CollectiveWatch>(device, std::move(watched),
                                               CollectiveWatch::Carrier{"a collective", {}, [this] { open_words(); }});
  }

  // A rank's places must not go while another may still write to them.
  ~CopiedPeers() override {
    wait_or_log(*out_, LogLevel::debug);
    watch_->stop();
    device_.make_current();
    peers_.clear();
    try {
      closing_->barrier();
    } catch (...) {  // they are gone
    }
  }

  void exchange(Stream& stream, const char* what, std::span<const PeerMessages> messages) override {
    std::vector<Pieces<const std::byte>> send;
    std::vector<Pieces<std::byte>> receive;
    std::size_t most = 0;
    for (int r = 0; r < size(); ++r) {
      send.push_back(r == rank_ ? Pieces<const std::byte>{} : cut(messages, &PeerMessages::send, r));
      receive.push_back(r == rank_ ? Pieces<std::byte>{} : cut(messages, &PeerMessages::receive, r));
      most = std::max({most, send.back().size(), receive.back().size()});
    }
    const CollectiveWatch::Lock lock = watch_->lock();
    watch_->rethrow();
    CollectiveWatch::Collective begun = watch_->begin(stream, what);
    stream.record(*ready_);
    out_->wait(*ready_);
    for (std::size_t i = 0; i < most; ++i)
      for (int step = 1; step < size(); ++step) {  // each rank begins with another, so that none is everybody's first
        const int to = (rank_ + step) % size(), from = (rank_ + size() - step) % size();
        const auto& out = send[static_cast<std::size_t>(to)];
        const auto& in = receive[static_cast<std::size_t>(from)];
        if (i < out.size()) send_piece(to, out[i]);
        if (i < in.size()) take_piece(stream, from, in[i]);
      }
    out_->record(*sent_all_);
    stream.wait(*sent_all_);
    watch_->end(stream, std::move(begun));
  }

  void all_gather(Stream& stream, std::span<const SliceGather> gathers) override {
    const auto self = static_cast<std::size_t>(rank_);
    std::vector<PeerMessages> messages;
    std::vector<DeviceCopy> own_slices;
    for (const auto& [own, bytes, all] : gathers) {
      const std::span slice(own, static_cast<std::size_t>(bytes[self]));
      PeerMessages& message = messages.emplace_back(std::vector(bytes.size(), slice), slices_of(all, bytes));
      std::byte* const place = message.receive[self].data();
      if (place != own && !slice.empty()) own_slices.push_back({place, own, slice.size()});
    }
    ops_->copy(stream, own_slices);
    exchange(stream, "all_gather", messages);
  }

 private:
  int size() const { return static_cast<int>(peers_.size()); }
  std::optional<PeerMemory> open(const std::string& shared, int rank) {
    if (rank == rank_) return std::nullopt;
    return PeerMemory(shared);
  }
  // The places of rank `from` among those of rank `at`.
  std::size_t place(int from, int at, std::uint32_t number) const {
    const auto sender = static_cast<std::size_t>(from < at ? from : from - 1);
    return (sender * PiecePlaces::of_a_rank + number % PiecePlaces::of_a_rank) * places_.piece;
  }
  // How many pieces rank `from` has sent to rank `to`, and how many that one has taken.
  int sent_word(int from, int to) const { return 2 * (from * size() + to); }
  int taken_word(int from, int to) const { return sent_word(from, to) + 1; }

  // After a failure: whatever this rank's GPU waits for has come. Others may still write the words.
  void open_words() {
    constexpr std::uint32_t far = std::uint32_t{1} << 30;
    for (int r = 0; r < size(); ++r) {
      if (r == rank_) continue;
      words_->at(sent_word(r, rank_)) = received_[static_cast<std::size_t>(r)] + far;
      words_->at(taken_word(rank_, r)) = sent_[static_cast<std::size_t>(r)] + far;
    }
  }

  // A place holds messages one after another, each at a multiple of `alignment`, and parts of such as do not fit. Both
  // ends cut them alike, since they agree on the lengths.
  static constexpr std::size_t alignment = 256;
  template <class Byte>
  struct Part {
    std::span<Byte> bytes;
    std::size_t offset;  // in the place
  };
  template <class Byte>
  using Pieces = std::vector<std::vector<Part<Byte>>>;
  template <class Byte>
  Pieces<Byte> cut(std::span<const PeerMessages> messages, std::vector<std::span<Byte>> PeerMessages::*side,
                   int rank) const {
    Pieces<Byte> pieces;
    std::size_t offset = places_.piece;
    for (const PeerMessages& message : messages)
      for (std::span<Byte> left = (message.*side)[static_cast<std::size_t>(rank)]; !left.empty();) {
        if (offset >= places_.piece) {
          pieces.emplace_back();
          offset = 0;
        }
        const std::span<Byte> part = left.first(std::min(left.size(), places_.piece - offset));
        pieces.back().push_back({part, offset});
        offset += (part.size() + alignment - 1) / alignment * alignment;
        left = left.subspan(part.size());
      }
    return pieces;
  }

  void send_piece(int to, std::span<const Part<const std::byte>> piece) {
    const cudaStream_t out = cuda_stream(*out_);
    std::uint32_t& number = sent_[static_cast<std::size_t>(to)];
    std::byte* const there = peers_[static_cast<std::size_t>(to)]->data() + place(rank_, to, number);
    ++number;
    wait_for_value(out, words_->on_device(taken_word(rank_, to)), number - PiecePlaces::of_a_rank);
    for (const auto& [bytes, offset] : piece) out_->copy(there + offset, bytes.data(), bytes.size());
    write_value(out, words_->on_device(sent_word(rank_, to)), number);
  }

  void take_piece(Stream& stream, int from, std::span<const Part<std::byte>> piece) {
    std::uint32_t& number = received_[static_cast<std::size_t>(from)];
    const auto* const here = static_cast<const std::byte*>(places_.memory.data()) + place(from, rank_, number);
    ++number;
    const cudaStream_t in = cuda_stream(stream);
    wait_for_value(in, words_->on_device(sent_word(from, rank_)), number);
    std::vector<DeviceCopy> copies;
    for (const auto& [bytes, offset] : piece) copies.push_back({bytes.data(), here + offset, bytes.size()});
    ops_->copy(stream, copies);
    write_value(in, words_->on_device(taken_word(from, rank_)), number);
  }

  Device& device_;
  const std::unique_ptr<EngineOps> ops_;
  const PiecePlaces places_;
  const std::unique_ptr<Communicator> closing_;
  const int rank_;
  std::unique_ptr<SharedWords> words_;
  std::vector<std::optional<PeerMemory>> peers_;  // by rank; none for this one
  std::vector<std::uint32_t> sent_, received_;    // pieces, by rank
  std::unique_ptr<Event> ready_, sent_all_;
  std::unique_ptr<CollectiveWatch> watch_;
  std::unique_ptr<Stream> out_;
};

}  // namespace

std::unique_ptr<DevicePeers> make_copied_peers(Device& device, Communicator& ranks, PiecePlaces places) {
  return std::make_unique<CopiedPeers>(device, ranks, std::move(places));
}

}  // namespace so
