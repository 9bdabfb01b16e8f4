#include "ranks/collectives/peer_collectives.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "ranks/shard_map.h"

namespace so {
namespace {

constexpr const char* memory_name = "rank exchange";

// Elements of all slices of a rank's that are reduced in a call.
std::int64_t most_reduced(const CollectiveSizes& sizes) { return std::max(sizes.longest_slice, sizes.most_reduced); }

}  // namespace

std::int64_t PeerCollectives::piece_of(const CollectiveSizes& sizes, int ranks) {
  constexpr std::int64_t all_bytes = std::int64_t{64} << 20, fewest = std::int64_t{1} << 16;
  // What follows a piece begins at a multiple of the alignment too, so that sums take vectors.
  const std::int64_t element = static_cast<std::int64_t>(size_of(sizes.reduced)) * std::max(ranks - 1, 1),
                     fits = all_bytes / element / ShardMap::default_alignment * ShardMap::default_alignment;
  return std::max<std::int64_t>(std::min(std::max(fits, fewest), most_reduced(sizes)), 1);
}

std::size_t PeerCollectives::received_bytes(const CollectiveSizes& sizes, int ranks) {
  const std::int64_t piece = std::min(piece_of(sizes, ranks), most_reduced(sizes));
  return static_cast<std::size_t>((ranks - 1) * piece) * size_of(sizes.reduced);
}

PeerCollectives::PeerCollectives(Device& device, EngineOps& ops, const RankPlace& place,
                                 std::unique_ptr<DevicePeers> peers, const CollectiveSizes& sizes, std::int64_t piece)
    : ops_(ops),
      place_(place),
      backed_(device.backed()),
      reduced_(sizes.reduced),
      piece_(std::max<std::int64_t>(std::min(piece, most_reduced(sizes)), 1)),
      peers_(std::move(peers)),
      received_(peers_ && peers_->has_arrivals()
                    ? Buffer()
                    : device.allocate(MemoryKind::device, received_bytes(sizes, place.size), memory_name)) {
  SO_CHECK(piece >= 1 && (peers_ || !backed_), "pieces of {} elements", piece);
}

void PeerCollectives::check(const SliceSum& sum) const {
  SO_CHECK(sum.counts.size() == static_cast<std::size_t>(place_.size) &&
               sum.own.size() == sum.counts[static_cast<std::size_t>(place_.rank)] &&
               sum.values.size() == std::accumulate(sum.counts.begin(), sum.counts.end(), std::int64_t{0}),
           "{} elements of {}, {} counts", sum.own.size(), sum.values.size(), sum.counts.size());
  SO_CHECK(sum.values.dtype() == reduced_, "a sum of {}, made for {}", name_of(sum.values.dtype()), name_of(reduced_));
}

// Every rank makes the same exchanges: as many as the longest slices need.
void PeerCollectives::reduce_scatter_sum(Stream& stream, std::span<const SliceSum> sums, Accumulate mode) {
  std::vector<Part> parts;
  std::int64_t room = piece_;
  const auto exchange = [&] {
    if (!parts.empty()) reduce(stream, parts, mode);
    parts.clear();
    room = piece_;
  };
  for (const SliceSum& sum : sums) {
    check(sum);
    const std::int64_t longest = *std::max_element(sum.counts.begin(), sum.counts.end());
    for (std::int64_t begin = 0; begin < longest; begin += parts.back().length) {
      if (room == 0) exchange();
      parts.push_back({&sum, begin, std::min(room, longest - begin)});
      room -= parts.back().length;
    }
  }
  exchange();
}

void PeerCollectives::reduce(Stream& stream, std::span<const Part> parts, Accumulate mode) {
  if (!backed_) return;
  const auto ranks = static_cast<std::size_t>(place_.size), self = static_cast<std::size_t>(place_.rank);
  const std::size_t element = size_of(reduced_);
  std::vector<PeerMessages> messages;
  std::vector<RankSum> sums;
  auto* room = peers_->has_arrivals() ? peers_->arrivals() : static_cast<std::byte*>(received_.data());
  std::vector<std::size_t> filled(ranks);  // of the arrivals of each rank, which are laid out as this one's are
  for (const Part& part : parts) {
    const SliceSum* const sum = part.sum;
    const std::int64_t begin = part.begin;
    const auto count = [&](std::size_t r) { return std::clamp(sum->counts[r] - begin, std::int64_t{0}, part.length); };
    const std::int64_t mine = count(self);
    const auto row = static_cast<std::size_t>(mine) * element;
    const Tensor others(room, reduced_, {place_.size - 1, mine});
    PeerMessages& of_part = messages.emplace_back();
    const auto* slice = static_cast<const std::byte*>(sum->values.data());
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::byte* const there = slice + static_cast<std::size_t>(std::min(begin, sum->counts[r])) * element;
      of_part.send.emplace_back(there, static_cast<std::size_t>(count(r)) * element);
      of_part.receive.emplace_back(room, r == self ? 0 : row);
      const std::size_t row_there = static_cast<std::size_t>(count(r)) * element;
      of_part.there.push_back(filled[r] + (self < r ? self : self - 1) * row_there);
      filled[r] += (ranks - 1) * row_there;
      if (r == self && mine > 0)
        sums.push_back({sum->own.rows(begin, mine), Tensor(const_cast<std::byte*>(there), reduced_, {mine}), others});
      if (r != self) room += row;
      slice += static_cast<std::size_t>(sum->counts[r]) * element;
    }
  }
  peers_->exchange(stream, "reduce_scatter", messages);
  ops_.sum_of_ranks(stream, sums, mode, place_.rank);
  peers_->used_arrivals(stream);
}

void PeerCollectives::all_gather(Stream& stream, std::span<const SliceGather> gathers) {
  for (const SliceGather& gather : gathers)
    SO_CHECK(gather.bytes.size() == static_cast<std::size_t>(place_.size), "{} counts", gather.bytes.size());
  if (backed_) peers_->all_gather(stream, gathers);
}

}  // namespace so
