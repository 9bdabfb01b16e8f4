#include "collectives/peer_collectives.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace so {
namespace {

constexpr const char* memory_name = "rank exchange";

std::size_t received_bytes(const CollectiveSizes& sizes, int ranks, std::int64_t piece) {
  return static_cast<std::size_t>((ranks - 1) * std::min(piece, sizes.longest_slice)) * size_of(sizes.reduced);
}

}  // namespace

std::int64_t PeerCollectives::piece_of(const CollectiveSizes& sizes, int ranks) {
  constexpr std::int64_t all_bytes = std::int64_t{64} << 20, fewest = std::int64_t{1} << 16;
  const std::int64_t fits = all_bytes / static_cast<std::int64_t>(size_of(sizes.reduced)) / std::max(ranks - 1, 1);
  return std::max<std::int64_t>(std::min(std::max(fits, fewest), sizes.longest_slice), 1);
}

PeerCollectives::PeerCollectives(Device& device, EngineOps& ops, const RankPlace& place,
                                 std::unique_ptr<DevicePeers> peers, const CollectiveSizes& sizes, std::int64_t piece)
    : ops_(ops),
      place_(place),
      backed_(device.backed()),
      reduced_(sizes.reduced),
      piece_(std::max<std::int64_t>(std::min(piece, sizes.longest_slice), 1)),
      received_(device.allocate(MemoryKind::device, received_bytes(sizes, place.size, piece), memory_name)),
      peers_(std::move(peers)) {
  SO_CHECK(piece >= 1 && (peers_ || !backed_), "pieces of {} elements", piece);
}

void PeerCollectives::reduce_scatter_sum(Stream& stream, Tensor values, std::span<const std::int64_t> counts,
                                         Tensor own, Accumulate mode) {
  const auto ranks = static_cast<std::size_t>(place_.size), self = static_cast<std::size_t>(place_.rank);
  SO_CHECK(counts.size() == ranks && own.size() == counts[self] &&
               values.size() == std::accumulate(counts.begin(), counts.end(), std::int64_t{0}),
           "{} elements of {}, {} counts", own.size(), values.size(), counts.size());
  SO_CHECK(values.dtype() == reduced_, "a sum of {}, made for {}", name_of(values.dtype()), name_of(reduced_));
  if (!backed_) return;
  const std::size_t element = size_of(values.dtype());
  const auto* const from = static_cast<const std::byte*>(values.data());
  std::vector<std::span<const std::byte>> send(ranks);
  std::vector<std::span<std::byte>> receive(ranks);
  const std::int64_t longest = *std::max_element(counts.begin(), counts.end());
  // Every rank makes as many exchanges as the longest slice needs.
  for (std::int64_t begin = 0; begin < longest; begin += piece_) {
    const auto length = [&](std::size_t r) { return std::clamp(counts[r] - begin, std::int64_t{0}, piece_); };
    const std::int64_t mine = length(self);
    const auto row = static_cast<std::size_t>(mine) * element;
    const std::byte* own_values = nullptr;
    std::int64_t slice = 0;
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::byte* const there = from + static_cast<std::size_t>(slice + std::min(begin, counts[r])) * element;
      send[r] = {there, static_cast<std::size_t>(length(r)) * element};
      if (r == self) own_values = there;
      if (r != self) receive[r] = {static_cast<std::byte*>(received_.data()) + (r < self ? r : r - 1) * row, row};
      slice += counts[r];
    }
    peers_->exchange(stream, "reduce_scatter", send, receive);
    if (mine == 0) continue;
    ops_.sum_of_ranks(stream, own.rows(begin, mine), mode,
                      Tensor(const_cast<std::byte*>(own_values), values.dtype(), {mine}),
                      Tensor(received_.data(), values.dtype(), {place_.size - 1, mine}), place_.rank);
  }
}

void PeerCollectives::all_gather(Stream& stream, std::span<const SliceGather> gathers) {
  for (const SliceGather& gather : gathers)
    SO_CHECK(gather.bytes.size() == static_cast<std::size_t>(place_.size), "{} counts", gather.bytes.size());
  if (backed_) peers_->all_gather(stream, gathers);
}

}  // namespace so
