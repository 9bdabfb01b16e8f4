#include "offload/exchange.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "offload/rank_exchange.h"
#include "ranks/shard_map.h"

namespace so {
namespace {

Range own_slice(const Bucket& bucket, const Communicator& ranks) {
  const ShardMap::Slice slice = ShardMap(bucket.range().size(), ranks.size()).slice(ranks.rank());
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

}  // namespace

std::vector<Bucket> shard_buckets(std::vector<Bucket> buckets, const Communicator& ranks) {
  if (ranks.size() == 1) return buckets;
  std::vector<Bucket> sharded;
  for (const Bucket& bucket : buckets)
    sharded.emplace_back(bucket.index(), bucket.range(), bucket.owner(), own_slice(bucket, ranks));
  return sharded;
}

std::unique_ptr<Exchange> make_exchange(Device& device, EngineOps& ops, Communicator& ranks, CollectiveRoute route,
                                        const ParameterLayout& layout, std::span<const Bucket> buckets,
                                        const UnitWeights& weights, const UnitGradients& gradients,
                                        RequireSent require_sent) {
  if (ranks.size() == 1) return std::make_unique<OneRank>(device, ops, layout, gradients);
  return std::make_unique<RankExchange>(device, ops, ranks, route, layout, buckets, weights, gradients,
                                        std::move(require_sent));
}

}  // namespace so
