// What the ranks of a run bring together in a step: sums of gradients, the statistics behind their norm, and weights.
// Several ranks exchange them; one rank has all of them already.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/accumulate.h"
#include "device/device.h"
#include "offload/memory/gathered_weights.h"
#include "offload/memory/unit_gradients.h"
#include "offload/memory/unit_weights.h"
#include "offload/schedule/bucket.h"
#include "offload/schedule/parameter_layout.h"
#include "optim/engine_ops.h"
#include "ranks/collectives/route.h"
#include "ranks/communicator.h"

namespace so {

class ShardMap;

class Exchange {
 public:
  virtual ~Exchange() = default;

  // ---- Gradients, in the order in which they become complete ----
  // The stream on which the ranks' sums come. What follows on it comes after what is on `model`, the model's stream.
  virtual Stream& reducing(Stream& model) = 0;
  // Enqueues there: each bucket's own slice of the gradient becomes the sum over ranks, or it is added to what the
  // slice has; the rest of the gradient is as it was. Frozen buckets are left out. Only gradients in slices can be
  // added, since the others add up where the model writes them.
  virtual void reduce(std::span<const Bucket> buckets, Accumulate mode) = 0;
  // Enqueues on `sums`, which is reducing(): the statistics of these buckets' gradients, which are `updated`'s:
  // parameters of one unit, but for what is not to be counted.
  virtual void count(std::span<const Bucket> buckets, std::span<const int> updated, Stream& sums) = 0;
  // Work that follows on `model` comes after all reductions, and after that statistics() holds.
  virtual void send_statistics(Stream& model) = 0;
  // Those of each parameter, of this rank's slices. Unspecified of parameters that were not counted in this step.
  virtual std::vector<GradStats> statistics() const = 0;

  // ---- Weights ----
  // Whether this rank has the bucket's weights, or has them on their way: if they stay, those of all ranks.
  virtual bool whole(const Bucket& bucket) const = 0;
  // Work that follows on `stream` finds the weights of all ranks of those of the buckets whose weights stay. Gathers
  // what is not whole, once this rank's own are there.
  virtual void gather(std::span<const Bucket> buckets, Stream& stream) = 0;
  // New weights are about to come: all buckets must be gathered again.
  virtual void forget() = 0;
  // The same of buckets that an update changes: frozen ones are still whole.
  virtual void forget_updated() = 0;

  // ---- Weights that are gathered for each use (memory/gathered_weights.h), of several ranks alone ----
  // The stream of gathers, which has to wait for the buckets' own weights before gather() is called.
  virtual Stream& gathers() = 0;
  // Enqueues there: every rank's slices come to where each gather says.
  virtual void gather(std::span<const BucketGather> gathers) = 0;
};

// Work that follows on the stream finds this rank's slice of the bucket's weights as its owner has updated it. May wait
// for the host to send it.
using RequireSent = std::function<void(const Bucket&, Stream&)>;

// The ranks' slices of a bucket, each of whole blocks (ParameterLayout::cut_before()).
ShardMap slices_of(const ParameterLayout& layout, Range bucket, int ranks, std::int64_t block = 1);

// This rank's slice of each bucket. A rank that owns nothing of a bucket has an empty slice at its beginning.
std::vector<Bucket> shard_buckets(const ParameterLayout& layout, std::vector<Bucket> buckets, const Communicator& ranks,
                                  std::int64_t block = 1);

// For these ranks; several make it together. `route`: that of several ranks' collectives, where the device's memory is
// its own. `block`: that of the slices. All references must outlive it, and so must the work that was enqueued there.
std::unique_ptr<Exchange> make_exchange(Device& device, EngineOps& ops, Communicator& ranks, CollectiveRoute route,
                                        const ParameterLayout& layout, std::span<const Bucket> buckets,
                                        const UnitWeights& weights, const UnitGradients& gradients, std::int64_t block,
                                        RequireSent require_sent);

}  // namespace so
