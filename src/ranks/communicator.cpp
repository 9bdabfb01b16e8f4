#include "ranks/communicator.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace so {
namespace {

// Elements of a slice that a reduction receives from each rank at a time: long beside a message's latency.
constexpr std::int64_t reduction_piece = std::int64_t{1} << 18;

class SingleCommunicator final : public Communicator {
 public:
  SingleCommunicator() : Communicator({}, 0) {}
  void abort(const std::string&) noexcept override {}
  std::unique_ptr<Communicator> duplicate() override { return with_its_limit(); }

 protected:
  void exchange(const char*, Sent, Received) override {}
  std::unique_ptr<Communicator> make_group(const RankPlace&) override { return with_its_limit(); }

 private:
  std::unique_ptr<Communicator> with_its_limit() const {
    auto other = make_single_communicator();
    other->set_time_limit(time_limit());
    return other;
  }
};

class DryCommunicator final : public Communicator {
 public:
  explicit DryCommunicator(int size) : Communicator({.size = size, .local_size = size}, 0) {}
  void abort(const std::string&) noexcept override {}
  std::unique_ptr<Communicator> duplicate() override { return make_dry_communicator(size()); }

 protected:
  void exchange(const char* what, Sent, Received) override {
    SO_CHECK(size() == 1, "{} of ranks that are not there", what);
  }
  std::unique_ptr<Communicator> make_group(const RankPlace& place) override {
    return make_dry_communicator(place.size);
  }
};

void check_counts(std::span<const std::int64_t> counts, const RankPlace& place, std::size_t own, std::size_t all) {
  SO_CHECK(std::ssize(counts) == place.size, "{} counts for {} ranks", counts.size(), place.size);
  const auto at = static_cast<std::size_t>(place.rank);
  SO_CHECK(static_cast<std::size_t>(counts[at]) == own, "{} elements of rank {}, whose slice has {}", own, place.rank,
           counts[at]);
  const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  SO_CHECK(static_cast<std::size_t>(sum) == all, "slices of {} elements in all, of an array of {}", sum, all);
}

void copy(std::span<std::byte> to, std::span<const std::byte> from) {
  if (!from.empty() && to.data() != from.data()) std::memmove(to.data(), from.data(), from.size());
}

// The first rank's values are taken as they are, so that one rank's sum is its own values, -0.0 included.
template <class T, class U>
void add_in_rank_order(std::span<T> sum, const U* values, int ranks) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<T>(values[i]);
  for (int r = 1; r < ranks; ++r) {
    values += sum.size();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<T>(values[i]);
  }
}

}  // namespace

RankFailure Communicator::lost(std::span<const int> ranks, const char* what, double seconds) {
  SO_CHECK(!ranks.empty(), "no rank is lost");
  std::string names = fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", ranks[0]);
  for (std::size_t i = 1; i < ranks.size(); ++i)
    names += fmt::format("{} {}", i + 1 == ranks.size() ? " and" : ",", ranks[i]);
  return {ranks[0],
          fmt::format("lost {}: no answer within {:g} s, where the other ranks wait ({})", names, seconds, what)};
}

namespace {

std::string farewell(int rank) { return fmt::format("rank {} gave up: ", rank); }

}  // namespace

bool RankFailure::gave_up() const { return std::string_view(what()).starts_with(farewell(rank_)); }

RankFailure Communicator::gave_up(int rank, const std::string& reason) { return {rank, farewell(rank) + reason}; }

template <class T>
void Communicator::sum_of_all(std::span<T> values) {
  const auto ranks = static_cast<std::size_t>(size());
  if (ranks == 1) return;
  const std::vector<std::int64_t> counts(ranks, static_cast<std::int64_t>(values.size()));
  std::vector<T> all(ranks * values.size());
  all_gather(std::span<const T>(values), counts, std::span(all));
  add_in_rank_order(values, all.data(), size());
}

void Communicator::all_reduce_sum(std::span<double> values) { sum_of_all(values); }
void Communicator::all_reduce_sum(std::span<float> values) { sum_of_all(values); }

std::size_t Communicator::reduction_scratch(int size) {
  return static_cast<std::size_t>(size) * static_cast<std::size_t>(reduction_piece) * sizeof(float);
}

template <class T>
void Communicator::sum_of_slices(std::span<const T> values, std::span<const std::int64_t> counts,
                                 std::span<float> own) {
  check_counts(counts, place_, own.size(), values.size());
  const auto ranks = static_cast<std::size_t>(size());
  const auto self = static_cast<std::size_t>(rank());
  const std::int64_t longest = *std::max_element(counts.begin(), counts.end());
  std::vector<T> received(ranks * static_cast<std::size_t>(std::min(counts[self], reduction_piece)));
  std::vector<std::span<const std::byte>> send(ranks);
  std::vector<std::span<std::byte>> receive(ranks);
  // Every rank makes as many exchanges as the longest slice needs.
  for (std::int64_t begin = 0; begin < longest; begin += reduction_piece) {
    const auto length = [&](std::size_t r) {
      return static_cast<std::size_t>(std::clamp(counts[r] - begin, std::int64_t{0}, reduction_piece));
    };
    const std::size_t mine = length(self);
    std::int64_t slice = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      const auto from = static_cast<std::size_t>(slice + std::min(begin, counts[r]));
      send[r] = std::as_bytes(values.subspan(from, length(r)));
      receive[r] = std::as_writable_bytes(std::span(received).subspan(r * mine, mine));
      slice += counts[r];
    }
    copy(receive[self], send[self]);
    exchange("reduce_scatter", send, receive);
    if (mine > 0) add_in_rank_order(own.subspan(static_cast<std::size_t>(begin), mine), received.data(), size());
  }
}

void Communicator::reduce_scatter_sum(std::span<const float> values, std::span<const std::int64_t> counts,
                                      std::span<float> own) {
  sum_of_slices(values, counts, own);
}

void Communicator::reduce_scatter_sum(std::span<const bf16> values, std::span<const std::int64_t> counts,
                                      std::span<float> own) {
  sum_of_slices(values, counts, own);
}

void Communicator::gather_bytes(std::span<const std::byte> own, std::span<const std::int64_t> counts,
                                std::size_t element, std::span<std::byte> all) {
  check_counts(counts, place_, own.size() / element, all.size() / element);
  const std::vector<std::span<const std::byte>> send(counts.size(), own);
  std::vector<std::span<std::byte>> receive;
  std::size_t at = 0;
  for (const std::int64_t count : counts) {
    receive.push_back(all.subspan(at, static_cast<std::size_t>(count) * element));
    at += receive.back().size();
  }
  copy(receive[static_cast<std::size_t>(rank())], own);
  exchange("all_gather", send, receive);
}

void Communicator::all_to_all(std::span<const std::byte> send, std::span<const std::int64_t> send_bytes,
                              std::span<std::byte> receive, std::span<const std::int64_t> receive_bytes) {
  const auto self = static_cast<std::size_t>(rank());
  const auto parts_of = [&](auto all, std::span<const std::int64_t> bytes) {
    SO_CHECK(std::ssize(bytes) == size(), "{} parts for {} ranks", bytes.size(), size());
    std::vector<decltype(all)> parts;
    std::size_t at = 0;
    for (const std::int64_t count : bytes) {
      SO_CHECK(count >= 0 && at + static_cast<std::size_t>(count) <= all.size(), "a part of {} bytes", count);
      parts.push_back(all.subspan(at, static_cast<std::size_t>(count)));
      at += parts.back().size();
    }
    SO_CHECK(at == all.size(), "parts of {} bytes in all, of {}", at, all.size());
    return parts;
  };
  const auto sent = parts_of(send, send_bytes);
  const auto received = parts_of(receive, receive_bytes);
  SO_CHECK(sent[self].size() == received[self].size(), "rank {} sends itself {} bytes and expects {}", rank(),
           sent[self].size(), received[self].size());
  copy(received[self], sent[self]);
  exchange("all_to_all", sent, received);
}

std::unique_ptr<Communicator> Communicator::split(int size) {
  SO_CHECK(size >= 1 && place_.size % size == 0, "groups of {} of {} ranks", size, place_.size);
  RankPlace place = place_;
  place.first = place_.in_run(rank() - rank() % size);
  place.rank = rank() % size;
  place.size = size;
  return make_group(place);
}

std::vector<std::string> Communicator::all_gather(std::string_view own) {
  const auto ranks = static_cast<std::size_t>(size());
  std::vector<std::int64_t> lengths(ranks);
  const auto length = static_cast<std::int64_t>(own.size());
  all_gather(std::span(&length, 1), std::vector<std::int64_t>(ranks, 1), std::span(lengths));
  std::string all(static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})), '\0');
  all_gather(std::span<const char>(own), lengths, std::span<char>(all));
  std::vector<std::string> texts;
  std::size_t at = 0;
  for (const std::int64_t bytes : lengths) {
    texts.push_back(all.substr(at, static_cast<std::size_t>(bytes)));
    at += static_cast<std::size_t>(bytes);
  }
  return texts;
}

void Communicator::broadcast(std::span<std::byte> bytes, int root) {
  SO_CHECK(root >= 0 && root < size(), "a broadcast from rank {} of {}", root, size());
  std::vector<std::span<const std::byte>> send(static_cast<std::size_t>(size()));
  std::vector<std::span<std::byte>> receive(send.size());
  if (rank() == root)
    std::fill(send.begin(), send.end(), bytes);
  else
    receive[static_cast<std::size_t>(root)] = bytes;
  exchange("broadcast", send, receive);
}

void Communicator::barrier() {
  const auto ranks = static_cast<std::size_t>(size());
  const std::byte sign{};
  std::vector<std::byte> signs(ranks);
  std::vector<std::span<std::byte>> receive;
  for (std::byte& byte : signs) receive.emplace_back(&byte, 1);
  exchange("barrier", std::vector<std::span<const std::byte>>(ranks, std::span(&sign, 1)), receive);
}

std::unique_ptr<Communicator> make_dry_communicator(int size) { return std::make_unique<DryCommunicator>(size); }
std::unique_ptr<Communicator> make_single_communicator() { return std::make_unique<SingleCommunicator>(); }

}  // namespace so
