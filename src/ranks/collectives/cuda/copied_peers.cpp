// Messages between GPUs of one host by copies into each other's memory, which take no multiprocessor from what runs
// beside them.
//
// Each rank has places for the pieces of each other rank. The sender copies a piece into the next place, over the link
// between the GPUs, and says in a word that both see how many pieces it has sent; the receiver's stream waits for that
// number, copies what is in the piece to where it belongs, and says how many it has taken, for which the sender waits
// before it uses a place again. Sending has a stream of its own, so that pieces go both ways at once. Short messages
// share a piece, since the copy out of it is a kernel, which has to wait for its turn beside others.
//
// Gathers need no pieces where the memory that they come to is shared: a rank says in a word for how many gathers its
// memory may be written, the others copy their slices to where they belong, and say for how many they have. Nor does
// what is reduced: it is added up where it arrives, in memory that two exchanges have in turn, and when that is done
// the receiver says so.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/peer_memory.h"
#include "device/cuda/shared_words.h"
#include "device/cuda/stream_values.h"
#include "device/wait_on_exit.h"
#include "optim/engine_ops.h"
#include "ranks/collectives/cuda/collective_watch.h"
#include "ranks/collectives/device_peers.h"
#include "ranks/together.h"

namespace so {
namespace {

class CopiedPeers final : public DevicePeers {
 public:
  CopiedPeers(Device& device, Communicator& ranks, PiecePlaces places, Arrivals arrivals, const Buffer* gathered_into)
      : device_(device),
        ops_(make_engine_ops(device)),
        places_(std::move(places)),
        arrivals_(std::move(arrivals)),
        gathered_into_(gathered_into),
        closing_(ranks.duplicate()),
        rank_(ranks.rank()) {
    std::unique_ptr<Communicator> watched = ranks.duplicate();
    const auto size = static_cast<std::size_t>(ranks.size());
    const auto share = [&](const Buffer* memory) {
      return gather_texts(ranks, [&] {
        require_stream_values();
        device.make_current();
        return memory ? share_memory(*memory) : std::string();
      });
    };
    const std::vector<std::string> places_of_all = share(places_.piece > 0 ? &places_.memory : nullptr),
                                   arrivals_of_all = share(has_arrivals() ? &arrivals_.memory : nullptr),
                                   gathered_of_all = share(gathered_into);
    const int count = words_of_a_pair * ranks.size() * ranks.size();
    const std::string name = on_first_rank(ranks, [&] {
      words_ = std::make_unique<SharedWords>(count);
      return words_->name();
    });
    together(ranks, [&] {
      if (!words_) words_ = std::make_unique<SharedWords>(name, count);
      for (std::size_t r = 0; r < size; ++r)
        peers_.push_back({open(places_of_all[r], static_cast<int>(r)), open(arrivals_of_all[r], static_cast<int>(r)),
                          open(gathered_of_all[r], static_cast<int>(r))});
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

  bool has_arrivals() const override { return arrivals_.of_an_exchange > 0; }
  std::byte* arrivals() override { return static_cast<std::byte*>(arrivals_.memory.data()) + half_of(arrived_ + 1); }
  void used_arrivals(Stream& stream) override {
    if (!has_arrivals()) return;
    for (int r = 0; r < size(); ++r)
      if (r != rank_) write_value(cuda_stream(stream), words_->on_device(word(Word::used, r, rank_)), arrived_);
  }

  void exchange(Stream& stream, const char* what, std::span<const PeerMessages> messages) override {
    if (has_arrivals() && !messages.empty() && !messages.front().there.empty()) return deliver(stream, what, messages);
    SO_CHECK(places_.piece > 0, "{} by pieces, for which there are no places", what);
    std::vector<Pieces<const std::byte>> send;
    std::vector<Pieces<std::byte>> receive;
    std::size_t most = 0;
    for (int r = 0; r < size(); ++r) {
      send.push_back(r == rank_ ? Pieces<const std::byte>{} : cut(messages, &PeerMessages::send, r));
      receive.push_back(r == rank_ ? Pieces<std::byte>{} : cut(messages, &PeerMessages::receive, r));
      most = std::max({most, send.back().size(), receive.back().size()});
    }
    collective(stream, what, [&] {
      for (std::size_t i = 0; i < most; ++i)
        for (int step = 1; step < size(); ++step) {  // each rank begins with another, so that none is everybody's first
          const int to = (rank_ + step) % size(), from = (rank_ + size() - step) % size();
          const auto& out = send[static_cast<std::size_t>(to)];
          const auto& in = receive[static_cast<std::size_t>(from)];
          if (i < out.size()) send_piece(to, out[i]);
          if (i < in.size()) take_piece(stream, from, in[i]);
        }
    });
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
    if (gathered_into_) return gather_into_place(stream, messages, own_slices);
    ops_->copy(stream, own_slices);
    exchange(stream, "all_gather", messages);
  }

 private:
  int size() const { return static_cast<int>(peers_.size()); }
  // Nothing of this rank, or if nothing is shared.
  std::optional<PeerMemory> open(const std::string& shared, int rank) {
    if (rank == rank_ || shared.empty()) return std::nullopt;
    return PeerMemory(shared);
  }

  // A collective, whose work on `stream` and on that of sending `enqueue` enqueues: sending begins when the stream
  // comes to it, and the stream goes on when all is sent.
  template <class Enqueue>
  void collective(Stream& stream, const char* what, const Enqueue& enqueue) {
    const CollectiveWatch::Collective begun = watch_->begin(stream, what);
    stream.record(*ready_);
    out_->wait(*ready_);
    enqueue();
    out_->record(*sent_all_);
    stream.wait(*sent_all_);
    watch_->end(stream, begun);
  }

  std::size_t half_of(std::uint32_t exchange) const { return exchange % 2 * arrivals_.of_an_exchange; }

  // Messages to where they are used.
  void deliver(Stream& stream, const char* what, std::span<const PeerMessages> messages) {
    collective(stream, what, [&] {
      const cudaStream_t in = cuda_stream(stream), out = cuda_stream(*out_);
      const std::uint32_t number = ++arrived_;
      for (int step = 1; step < size(); ++step) {
        const int to = (rank_ + step) % size();
        const auto t = static_cast<std::size_t>(to);
        wait_for_value(out, words_->on_device(word(Word::used, rank_, to)), number - 2);
        std::byte* const there = peers_[t].arrivals->data() + half_of(number);
        for (const PeerMessages& message : messages)
          if (!message.send[t].empty())
            out_->copy(there + message.there[t], message.send[t].data(), message.send[t].size());
        write_value(out, words_->on_device(word(Word::arrived, rank_, to)), number);
      }
      for (int r = 0; r < size(); ++r)
        if (r != rank_) wait_for_value(in, words_->on_device(word(Word::arrived, r, rank_)), number);
    });
  }

  // The messages are slices, and each rank receives those of the others where they lie among all.
  void gather_into_place(Stream& stream, std::span<const PeerMessages> messages,
                         std::span<const DeviceCopy> own_slices) {
    const auto self = static_cast<std::size_t>(rank_);
    collective(stream, "all_gather", [&] {
      const cudaStream_t in = cuda_stream(stream), out = cuda_stream(*out_);
      ++gathers_;
      for (int r = 0; r < size(); ++r)
        if (r != rank_) write_value(in, words_->on_device(word(Word::may_be_written, r, rank_)), gathers_);
      ops_->copy(stream, own_slices);
      for (int step = 1; step < size(); ++step) {
        const int to = (rank_ + step) % size();
        wait_for_value(out, words_->on_device(word(Word::may_be_written, rank_, to)), gathers_);
        std::byte* const there = peers_[static_cast<std::size_t>(to)].gathered_into->data();
        for (const PeerMessages& message : messages) {
          const std::span<const std::byte> slice = message.send[self];
          out_->copy(there + offset_of(message.receive[self]), slice.data(), slice.size());
        }
        write_value(out, words_->on_device(word(Word::written, rank_, to)), gathers_);
      }
      for (int r = 0; r < size(); ++r)
        if (r != rank_) wait_for_value(in, words_->on_device(word(Word::written, r, rank_)), gathers_);
    });
  }
  // The same on every rank.
  std::size_t offset_of(std::span<const std::byte> slice) const {
    const auto* const begin = static_cast<const std::byte*>(gathered_into_->data());
    SO_CHECK(slice.data() >= begin && slice.data() + slice.size() <= begin + gathered_into_->bytes(),
             "a gather to memory that is not shared");
    return static_cast<std::size_t>(slice.data() - begin);
  }

  // The places of rank `from` among those of rank `at`.
  std::size_t place(int from, int at, std::uint32_t number) const {
    const auto sender = static_cast<std::size_t>(from < at ? from : from - 1);
    return (sender * PiecePlaces::of_a_rank + number % PiecePlaces::of_a_rank) * places_.piece;
  }
  // Numbers that both of a pair see: how many pieces rank `from` has sent to rank `to`, and how many that one has
  // taken; for how many gathers the memory of rank `to` may be written, and for how many rank `from` has written it; of
  // how many reductions' exchanges the messages have arrived, and of how many they have been used.
  enum class Word : std::uint8_t { sent, taken, may_be_written, written, arrived, used };
  static constexpr int words_of_a_pair = 6;
  int word(Word what, int from, int to) const {
    return words_of_a_pair * (from * size() + to) + static_cast<int>(what);
  }

  // After a failure, and the watch's: whatever this rank's GPU waits for has come. Others may still write the words, so
  // this is called again and again.
  void open_words() {
    constexpr std::uint32_t far = std::uint32_t{1} << 30;  // more than is under way
    if (opened_.empty())
      for (int r = 0; r < size(); ++r) {
        if (r == rank_) continue;
        for (const int i :
             {word(Word::sent, r, rank_), word(Word::taken, rank_, r), word(Word::written, r, rank_),
              word(Word::may_be_written, rank_, r), word(Word::arrived, r, rank_), word(Word::used, rank_, r)})
          opened_.emplace_back(i, words_->at(i) + far);
      }
    for (const auto& [i, value] : opened_) words_->at(i) = value;
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
    std::byte* const there = peers_[static_cast<std::size_t>(to)].places->data() + place(rank_, to, number);
    ++number;
    wait_for_value(out, words_->on_device(word(Word::taken, rank_, to)), number - PiecePlaces::of_a_rank);
    for (const auto& [bytes, offset] : piece) out_->copy(there + offset, bytes.data(), bytes.size());
    write_value(out, words_->on_device(word(Word::sent, rank_, to)), number);
  }

  void take_piece(Stream& stream, int from, std::span<const Part<std::byte>> piece) {
    std::uint32_t& number = received_[static_cast<std::size_t>(from)];
    const auto* const here = static_cast<const std::byte*>(places_.memory.data()) + place(from, rank_, number);
    ++number;
    const cudaStream_t in = cuda_stream(stream);
    wait_for_value(in, words_->on_device(word(Word::sent, from, rank_)), number);
    std::vector<DeviceCopy> copies;
    for (const auto& [bytes, offset] : piece) copies.push_back({bytes.data(), here + offset, bytes.size()});
    ops_->copy(stream, copies);
    write_value(in, words_->on_device(word(Word::taken, from, rank_)), number);
  }

  Device& device_;
  const std::unique_ptr<EngineOps> ops_;
  const PiecePlaces places_;
  const Arrivals arrivals_;
  const Buffer* const gathered_into_;  // or null
  const std::unique_ptr<Communicator> closing_;
  const int rank_;
  std::unique_ptr<SharedWords> words_;
  // Another rank's memory, if it is shared.
  struct Peer {
    std::optional<PeerMemory> places, arrivals, gathered_into;
  };
  std::vector<Peer> peers_;                     // by rank; nothing of this one
  std::vector<std::uint32_t> sent_, received_;  // pieces, by rank
  std::uint32_t gathers_ = 0, arrived_ = 0;     // into place; exchanges of reductions
  std::unique_ptr<Event> ready_, sent_all_;
  std::vector<std::pair<int, std::uint32_t>> opened_;  // words, and what they are set to after a failure
  std::unique_ptr<CollectiveWatch> watch_;
  std::unique_ptr<Stream> out_;
};

}  // namespace

std::unique_ptr<DevicePeers> make_copied_peers(Device& device, Communicator& ranks, PiecePlaces places,
                                               Arrivals arrivals, const Buffer* gathered_into) {
  return std::make_unique<CopiedPeers>(device, ranks, std::move(places), std::move(arrivals), gathered_into);
}

}  // namespace so
