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

#include "offload/memory/device_weights.h"
#include "offload/memory/gathered_weights.h"
#include "offload/memory/unit_gradients.h"
#include "offload/schedule/bucket.h"
#include "optim/engine_ops.h"
#include "ranks/collectives/device_collectives.h"
#include "ranks/communicator.h"
#include "ranks/shard_map.h"

namespace so {

// This rank's slice of each bucket. A rank that owns nothing of a bucket has an empty slice at its beginning.
std::vector<Bucket> shard_buckets(std::vector<Bucket> buckets, const Communicator& ranks);

class RankExchange {
 public:
  // For several ranks. Itself a collective. `route`: that of the collectives, where the device's
  // memory is its own. All references must outlive it, and so must the work that was enqueued here.
  RankExchange(Device& device, EngineOps& ops, Communicator& ranks, CollectiveRoute route,
               const ParameterLayout& layout, std::span<const Bucket> buckets, const DeviceWeights& weights,
               const UnitGradients& gradients);
  // Waits for what is enqueued, as long as the ranks' time limit at most.
  ~RankExchange();
  RankExchange(const RankExchange&) = delete;
  RankExchange& operator=(const RankExchange&) = delete;

  // The stream of reductions. An error of the other ranks is this stream's, and reaches what waits for its events.
  Stream& reductions() { return *reduce_; }
  // For buckets of a unit that somebody owns. Enqueues there: each bucket's own slice of the gradient becomes the sum
  // over ranks, or it is added to what the slice has; the rest of the gradient is as it was. The stream has been made
  // to wait for the gradients. Only gradients in slices can be added, since the others add up where the model writes
  // them.
  void reduce(std::span<const Bucket* const> buckets, Accumulate mode);
  // Enqueues there: the statistics of the buckets' own slices.
  void take_statistics(std::span<const Bucket* const> buckets);
  // Work that follows on `stream` comes after all reductions, and after that statistics() holds.
  void send_statistics(Stream& stream);
  // By parameter, of this rank's slices.
  std::vector<GradStats> statistics() const;

  // The stream of gathers, which has to wait for the buckets' own weights before gather() is called.
  Stream& gathers() { return *gather_; }
  // Whether the bucket's weights are whole, or on their way to be.
  bool gathered(const Bucket& bucket) const { return gathered_[at(bucket)]; }
  // Enqueues: every rank's slices of the weights are there, in the weights' own place.
  void gather(std::span<const Bucket* const> buckets);
  // Enqueues: they come to where each gather says.
  void gather(std::span<const BucketGather> gathers);
  // Work that follows on `stream` finds the bucket's weights whole.
  void require(const Bucket& bucket, Stream& stream) { stream.wait(*whole_[at(bucket)]); }
  // New weights are about to come: all buckets must be gathered again.
  void forget() { gathered_.assign(gathered_.size(), false); }
  // The same of buckets that an update changes: frozen ones are still whole.
  void forget_updated() {
    for (std::size_t i = 0; i < gathered_.size(); ++i) gathered_[i] = gathered_[i] && frozen_[i];
  }

 private:
  // The elements of a parameter that lie in this rank's slice of a bucket.
  struct Part {
    int parameter;
    Range range;
  };
  static std::size_t at(const Bucket& bucket) { return static_cast<std::size_t>(bucket.index()); }

  EngineOps& ops_;
  const ParameterLayout& layout_;
  const DeviceWeights& weights_;
  const UnitGradients& gradients_;
  std::vector<ShardMap> shards_;                        // by bucket
  std::vector<std::vector<std::int64_t>> slice_bytes_;  // of weights, by bucket, then by rank
  std::vector<Part> parts_;                             // by bucket, then by parameter
  std::vector<std::size_t> first_parts_;                // by bucket
  Buffer stats_, stats_host_, scratch_;                 // GradStats by part, on the device and pinned
  std::vector<bool> gathered_, frozen_;                 // by bucket
  std::vector<std::unique_ptr<Event>> whole_;           // by bucket
  std::unique_ptr<Event> sent_;
  std::unique_ptr<DeviceCollectives> reducing_, gathering_;
  std::unique_ptr<Stream> reduce_, gather_;  // last: their work uses all the others
};

}  // namespace so
