#include "offload/exchange.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "device/wait_on_exit.h"
#include "ranks/collectives/device_collectives.h"
#include "ranks/shard_map.h"

namespace so {
namespace {

Range own_slice(const ParameterLayout& layout, const Bucket& bucket, const Communicator& ranks, std::int64_t block) {
  const ShardMap::Slice slice = slices_of(layout, bucket.range(), ranks.size(), block).slice(ranks.rank());
  const std::int64_t begin = bucket.range().begin;
  if (slice.size() == 0) return {begin, begin};
  return {begin + slice.begin, begin + slice.end};
}

// For the statistics of any unit's gradients.
std::size_t largest_stats_scratch(const ParameterLayout& layout) {
  std::vector<std::size_t> units(static_cast<std::size_t>(layout.units()));
  for (const Parameter& parameter : layout.parameters())
    units[static_cast<std::size_t>(parameter.unit)] += EngineOps::stats_scratch(parameter.size());
  return *std::max_element(units.begin(), units.end());
}

// One rank has all gradients and weights, so nothing travels. It takes the statistics of whole parameters, on the
// model's stream: another order of additions would change the norm's bits.
class OneRank final : public Exchange {
 public:
  OneRank(Device& device, EngineOps& ops, const ParameterLayout& layout, const UnitGradients& gradients)
      : ops_(ops),
        gradients_(gradients),
        stats_(device.allocate(MemoryKind::device, sizeof(GradStats) * static_cast<std::size_t>(layout.count()),
                               "gradient norms")),
        stats_host_(device.allocate(MemoryKind::pinned, stats_.bytes(), "gradient norms")),
        scratch_(device.allocate(MemoryKind::device, largest_stats_scratch(layout), "gradient norms")) {}

  Stream& reducing(Stream& model) override { return model; }
  void reduce(std::span<const Bucket>, Accumulate) override {}
  void count(std::span<const Bucket>, std::span<const int> updated, Stream& sums) override {
    std::vector<StatsOf> parameters;
    for (const int p : updated)
      parameters.push_back({static_cast<GradStats*>(stats_.data()) + p, gradients_.places().view(p)});
    const Tensor scratch(scratch_.data(), DType::u8, {static_cast<std::int64_t>(scratch_.bytes())});
    ops_.grad_stats(sums, parameters, scratch);
  }
  void send_statistics(Stream& model) override { model.copy(stats_host_.data(), stats_.data(), stats_.bytes()); }
  std::vector<GradStats> statistics() const override {
    const auto* const all = static_cast<const GradStats*>(stats_host_.data());
    return {all, all + stats_host_.bytes() / sizeof(GradStats)};
  }
  bool whole(const Bucket&) const override { return true; }
  void gather(std::span<const Bucket>, Stream&) override {}
  void forget() override {}
  void forget_updated() override {}
  Stream& gathers() override { SO_BUG("one rank has nothing to gather"); }
  void gather(std::span<const BucketGather>) override { SO_BUG("one rank has nothing to gather"); }

 private:
  EngineOps& ops_;
  const UnitGradients& gradients_;
  Buffer stats_, stats_host_, scratch_;  // GradStats by parameter, on the device and pinned
};

// The traffic of an optimizer step between ranks, each of which owns a slice of every bucket's optimizer state: a
// bucket's gradient is reduced, and each rank receives the sum of its slice; the slices of the weights are gathered,
// after the update where each rank's device keeps all weights (the traffic of ZeRO-2), and ahead of each use where it
// keeps its own slices (ZeRO-3, memory/gathered_weights.h).
//
// Both run on streams of their own, each with a communicator of its own, so neither waits for the other. The order of
// each is the same on every rank: reductions go in the order in which gradients become complete, from the last bucket
// to the first, and gathers in the order in which the forward pass asks for weights. When the host has updated a
// bucket, which differs between ranks, changes neither.
class RankExchange final : public Exchange {
 public:
  RankExchange(Device& device, EngineOps& ops, Communicator& ranks, CollectiveRoute route,
               const ParameterLayout& layout, std::span<const Bucket> buckets, const UnitWeights& weights,
               const UnitGradients& gradients, std::int64_t block, RequireSent require_sent)
      : ops_(ops),
        layout_(layout),
        weights_(weights),
        gradients_(gradients),
        require_sent_(std::move(require_sent)),
        gathered_(buckets.size(), true),
        written_(device.create_event()),
        sent_(device.create_event()),
        reduce_(device.create_stream("reduce")),
        gather_(device.create_stream("gather")) {
    // Of any rank, so that all take the memory that is planned for one.
    std::size_t most_parts = 0;
    std::vector<std::size_t> scratch(static_cast<std::size_t>(layout.units())), gathered(scratch.size());
    std::vector<std::int64_t> reduced(scratch.size());
    CollectiveSizes sizes{.reduced = gradients.dtype()};
    for (const Bucket& bucket : buckets) {
      shards_.push_back(slices_of(layout, bucket.range(), ranks.size(), block));
      std::vector<std::int64_t>& bytes = slice_bytes_.emplace_back();
      for (const std::int64_t count : shards_.back().counts())
        bytes.push_back(count * static_cast<std::int64_t>(size_of(weights.on_device().dtype())));
      const std::int64_t slice = shards_.back().longest();
      const auto unit = static_cast<std::size_t>(layout.unit_of(bucket.range().begin));
      gathered[unit] += static_cast<std::size_t>(slice) * size_of(weights.on_device().dtype());
      whole_.push_back(device.create_event());
      first_parts_.push_back(parts_.size());
      frozen_.push_back(bucket.frozen());
      if (frozen_.back()) continue;
      sizes.longest_slice = std::max(sizes.longest_slice, slice);
      const auto parts = static_cast<std::size_t>(layout.first_ending_after(bucket.range().end - 1) -
                                                  layout.first_ending_after(bucket.range().begin) + 1);
      most_parts += parts;
      scratch[unit] += EngineOps::stats_scratch(slice) + parts * EngineOps::stats_scratch(1);
      reduced[unit] += slice;
      for (int p = layout.first_ending_after(bucket.own().begin); p < layout.count(); ++p) {
        const Range range{std::max(layout.range(p).begin, bucket.own().begin),
                          std::min(layout.range(p).end, bucket.own().end)};
        if (layout.range(p).begin >= bucket.own().end) break;
        if (range.size() <= 0) continue;
        parts_.push_back({p, range});
      }
    }
    first_parts_.push_back(parts_.size());
    SO_CHECK(parts_.size() <= most_parts, "{} parts of {}", parts_.size(), most_parts);
    stats_ = device.allocate(MemoryKind::device, sizeof(GradStats) * most_parts, "gradient norms");
    stats_host_ = device.allocate(MemoryKind::pinned, stats_.bytes(), "gradient norms");
    scratch_ = device.allocate(MemoryKind::device, *std::max_element(scratch.begin(), scratch.end()), "gradient norms");
    reducing_ = make_device_collectives(device, ops, ranks, route,
                                        {.longest_slice = sizes.longest_slice,
                                         .most_reduced = *std::max_element(reduced.begin(), reduced.end()),
                                         .reduced = sizes.reduced,
                                         .most_gathered = 0});
    gathering_ = make_device_collectives(
        device, ops, ranks, route,
        {.longest_slice = 0, .most_gathered = *std::max_element(gathered.begin(), gathered.end())},
        &weights.on_device().memory());
  }
  // Waits for what is enqueued, as long as the ranks' time limit at most.
  ~RankExchange() override {
    for (Stream* stream : {reduce_.get(), gather_.get()}) wait_or_log(*stream, LogLevel::debug);
  }
  RankExchange(const RankExchange&) = delete;
  RankExchange& operator=(const RankExchange&) = delete;

  // Exchange. An error of the other ranks is its streams', and reaches what waits for their events.
  Stream& reducing(Stream& model) override {
    model.record(*written_);
    reduce_->wait(*written_);
    return *reduce_;
  }
  void reduce(std::span<const Bucket> buckets, Accumulate mode) override {
    std::vector<SliceSum> sums;
    for (const Bucket& bucket : buckets)
      if (!bucket.frozen())
        sums.push_back(
            {Tensor(gradients_.places().at(bucket.range().begin), gradients_.dtype(), {bucket.range().size()}),
             shards_[at(bucket)].counts(), gradients_.own(bucket)});
    reducing_->reduce_scatter_sum(*reduce_, sums, mode);
  }
  void count(std::span<const Bucket> buckets, std::span<const int>, Stream& sums) override {
    std::vector<StatsOf> parts;
    for (const Bucket& bucket : buckets)
      for (std::size_t i = first_parts_[at(bucket)]; i < first_parts_[at(bucket) + 1]; ++i)
        parts.push_back({static_cast<GradStats*>(stats_.data()) + i, gradients_.own(parts_[i].range)});
    const Tensor scratch(scratch_.data(), DType::u8, {static_cast<std::int64_t>(scratch_.bytes())});
    ops_.grad_stats(sums, parts, scratch);
  }
  void send_statistics(Stream& model) override {
    reduce_->copy(stats_host_.data(), stats_.data(), stats_.bytes());
    reduce_->record(*sent_);
    model.wait(*sent_);
  }
  std::vector<GradStats> statistics() const override {
    std::vector<GradStats> sums(static_cast<std::size_t>(layout_.count()));
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const GradStats& part = static_cast<const GradStats*>(stats_host_.data())[i];
      GradStats& sum = sums[static_cast<std::size_t>(parts_[i].parameter)];
      sum.sum_of_squares += part.sum_of_squares;
      sum.non_finite += part.non_finite;
    }
    return sums;
  }
  bool whole(const Bucket& bucket) const override { return !stays(bucket) || gathered_[at(bucket)]; }
  void gather(std::span<const Bucket> buckets, Stream& stream) override {
    std::vector<BucketGather> gathers;
    for (const Bucket& bucket : buckets) {
      if (whole(bucket)) continue;
      if (gathers.empty()) weights_.finish_prefetch();  // what was decided to come before
      require_sent_(bucket, *gather_);
      const Range range = bucket.range();
      std::byte* const all = weights_.on_device().at(range.begin);
      gathers.push_back({&bucket, all + weights_.on_device().bytes_of({range.begin, bucket.own().begin}), all});
    }
    if (!gathers.empty()) gather(gathers);
    for (const BucketGather& gathered : gathers) {
      gather_->record(*whole_[at(*gathered.bucket)]);
      gathered_[at(*gathered.bucket)] = true;
    }
    for (const Bucket& bucket : buckets)
      if (stays(bucket)) stream.wait(*whole_[at(bucket)]);
  }
  void forget() override { gathered_.assign(gathered_.size(), false); }
  void forget_updated() override {
    for (std::size_t i = 0; i < gathered_.size(); ++i) gathered_[i] = gathered_[i] && frozen_[i];
  }
  Stream& gathers() override { return *gather_; }
  void gather(std::span<const BucketGather> gathers) override {
    std::vector<SliceGather> slices;
    for (const auto& [bucket, own, all] : gathers) slices.push_back({own, slice_bytes_[at(*bucket)], all});
    gathering_->all_gather(*gather_, slices);
  }

 private:
  // The elements of a parameter that lie in this rank's slice of a bucket.
  struct Part {
    int parameter;
    Range range;
  };
  // Whether its weights stay whole on the device, rather than come for each use.
  bool stays(const Bucket& bucket) const { return !weights_.at(bucket.own().begin).gathers(); }
  static std::size_t at(const Bucket& bucket) { return static_cast<std::size_t>(bucket.index()); }

  EngineOps& ops_;
  const ParameterLayout& layout_;
  const UnitWeights& weights_;
  const UnitGradients& gradients_;
  const RequireSent require_sent_;
  std::vector<ShardMap> shards_;                        // by bucket
  std::vector<std::vector<std::int64_t>> slice_bytes_;  // of weights, by bucket, then by rank
  std::vector<Part> parts_;                             // by bucket, then by parameter
  std::vector<std::size_t> first_parts_;                // by bucket
  Buffer stats_, stats_host_, scratch_;                 // GradStats by part, on the device and pinned
  std::vector<bool> gathered_, frozen_;                 // by bucket
  std::vector<std::unique_ptr<Event>> whole_;           // by bucket
  std::unique_ptr<Event> written_, sent_;               // the model's gradients; the statistics
  std::unique_ptr<DeviceCollectives> reducing_, gathering_;
  std::unique_ptr<Stream> reduce_, gather_;  // last: their work uses all the others
};

}  // namespace

ShardMap slices_of(const ParameterLayout& layout, Range bucket, int ranks, std::int64_t block) {
  return {bucket.size(), ranks,
          [&](std::int64_t at) { return layout.cut_before(bucket.begin + at, block) - bucket.begin; }};
}

std::vector<Bucket> shard_buckets(const ParameterLayout& layout, std::vector<Bucket> buckets, const Communicator& ranks,
                                  std::int64_t block) {
  if (ranks.size() == 1) return buckets;
  std::vector<Bucket> sharded;
  for (const Bucket& bucket : buckets)
    sharded.emplace_back(bucket.index(), bucket.range(), bucket.owner(), own_slice(layout, bucket, ranks, block));
  return sharded;
}

std::unique_ptr<Exchange> make_exchange(Device& device, EngineOps& ops, Communicator& ranks, CollectiveRoute route,
                                        const ParameterLayout& layout, std::span<const Bucket> buckets,
                                        const UnitWeights& weights, const UnitGradients& gradients, std::int64_t block,
                                        RequireSent require_sent) {
  if (ranks.size() == 1) return std::make_unique<OneRank>(device, ops, layout, gradients);
  return std::make_unique<RankExchange>(device, ops, ranks, route, layout, buckets, weights, gradients, block,
                                        std::move(require_sent));
}

}  // namespace so
