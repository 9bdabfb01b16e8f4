// The traffic of an optimizer step between ranks, each of which owns a slice of every bucket's optimizer state: a
// bucket's gradient is reduced, and each rank receives the sum of its slice; the slices of the weights are gathered,
// after the update where each rank's device keeps all weights (the traffic of ZeRO-2), and ahead of each use where it
// keeps its own slices (ZeRO-3, memory/gathered_weights.h).
//
// Both run on streams of their own, each with a communicator of its own, so neither waits for the other. The order of
// each is the same on every rank: reductions go in the order in which gradients become complete, from the last bucket
// to the first, and gathers in the order in which the forward pass asks for weights. When the host has updated a
// bucket, which differs between ranks, changes neither.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "offload/exchange.h"
#include "offload/memory/unit_gradients.h"
#include "offload/memory/unit_weights.h"
#include "offload/schedule/bucket.h"
#include "optim/engine_ops.h"
#include "ranks/collectives/device_collectives.h"
#include "ranks/communicator.h"
#include "ranks/shard_map.h"

namespace so {

class RankExchange final : public Exchange {
 public:
  // For several ranks. Itself a collective. `route`: that of the collectives, where the device's
  // memory is its own. All references must outlive it, and so must the work that was enqueued here.
  RankExchange(Device& device, EngineOps& ops, Communicator& ranks, CollectiveRoute route,
               const ParameterLayout& layout, std::span<const Bucket> buckets, const UnitWeights& weights,
               const UnitGradients& gradients, RequireSent require_sent);
  // Waits for what is enqueued, as long as the ranks' time limit at most.
  ~RankExchange() override;
  RankExchange(const RankExchange&) = delete;
  RankExchange& operator=(const RankExchange&) = delete;

  // Exchange. An error of the other ranks is its streams', and reaches what waits for their events.
  Stream& reducing(Stream& model) override;
  void reduce(std::span<const Bucket> buckets, Accumulate mode) override;
  void count(std::span<const Bucket> buckets, std::span<const int> updated, Stream& sums) override;
  void send_statistics(Stream& model) override;
  std::vector<GradStats> statistics() const override;
  bool whole(const Bucket& bucket) const override { return !stays(bucket) || gathered_[at(bucket)]; }
  void gather(std::span<const Bucket> buckets, Stream& stream) override;
  void forget() override { gathered_.assign(gathered_.size(), false); }
  void forget_updated() override {
    for (std::size_t i = 0; i < gathered_.size(); ++i) gathered_[i] = gathered_[i] && frozen_[i];
  }
  Stream& gathers() override { return *gather_; }
  void gather(std::span<const BucketGather> gathers) override;

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

}  // namespace so
