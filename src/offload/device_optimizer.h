// The device's half of the optimizer: it updates the buckets that the device owns in place, after the verdict, on the
// stream that computed their gradients; with several ranks, this rank's slices of them. The verbs are HostOptimizer's;
// none of them waits for the device but the reading and writing of state.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/weight_piece.h"
#include "offload/adamw_steps.h"
#include "offload/memory/optimizer_state.h"
#include "offload/memory/state_transfer.h"
#include "offload/memory/unit_gradients.h"
#include "offload/memory/unit_weights.h"
#include "offload/save_gate.h"
#include "offload/schedule/bucket.h"
#include "optim/device_adamw.h"
#include "optim/engine_ops.h"

namespace so {

// Totals since construction, of device-owned buckets.
struct DeviceCounters {
  std::int64_t committed = 0, discarded = 0;  // of steps that stood and that were skipped
  double save_wait_seconds = 0;               // of updates for a save that had not passed
};

class DeviceOptimizer {
 public:
  // `buckets`: the engine's, of all owners; this object alone moves the device-owned ones. All references must outlive
  // it.
  DeviceOptimizer(Device& device, EngineOps& ops, const ParameterLayout& layout, std::span<Bucket> buckets,
                  OptimizerState& state, const UnitWeights& weights, const UnitGradients& gradients, SaveGate& gate);

  // A gradient is being written.
  void land(Bucket& bucket);
  // The gradients of all its buckets are complete, or will be by when `decide()` enqueues.
  void landed();
  // The verdict: whether the step stands, and with which update, which is enqueued.
  void decide(bool stands, const AdamWSteps& steps, Stream& compute);

  // Work that follows on `stream` finds the bucket's weights and state of the last update.
  void require(const Bucket& bucket, Stream& stream);
  // Puts the master weights of the bucket's own slice, rounded, on the device, where its weights are kept. Enqueues.
  void send_masters(const Bucket& bucket, Stream& stream);
  // The weights of the own slices of those of the buckets that the device owns, made of their master weights. Enqueues.
  void cast_masters(std::span<const Bucket> buckets, Stream& stream);

  // Elements `part` of the bucket's state, which lie in its own slice. Waits for the last update, and until what was
  // written is there.
  void read_state(StateArray array, const Bucket& bucket, Range part, const ReadPiece& body);
  void write_state(StateArray array, const Bucket& bucket, Range part, const WritePiece& fill);
  // Loading: elements `part` of the bucket's own slice from a piece that holds them. Where the piece has them in the
  // weights' format they are on the device already, in the order of `stream`; where it has not, the weights are made of
  // the masters.
  void place_masters(Stream& stream, const Bucket& bucket, Range part, const WeightPiece& piece);
  // The same for moments, which come in the format they are kept in, or in fp32 where that is 8 bits: then it waits.
  void place_moments(Stream& stream, StateArray array, const Bucket& bucket, Range part, const WeightPiece& piece);

  const DeviceCounters& counters() const { return counters_; }

 private:
  // Returns the longest run of device-owned buckets from the first on whose own slices are adjacent in every array, so
  // that one launch can update them all. With several ranks other ranks' slices lie between.
  std::span<Bucket> adjacent(std::span<Bucket> buckets) const;
  // body(run) for each such run of the device's buckets, in order.
  template <class Body>
  void for_each_run(std::span<Bucket> buckets, const Body& body) const;
  void update(std::span<Bucket> run, Stream& compute, const AdamWSteps& steps);
  // Those of a range of this rank's slices, which are adjacent there: not the caller's.
  Tensor weights_at(Range range) const {
    return {weights_.own_at(range.begin), weights_.on_device().dtype(), {range.size()}};
  }
  // Marks that the bucket's weights and state are those of the last update.
  Event& current(const Bucket& bucket) { return *current_[static_cast<std::size_t>(bucket.index())]; }

  EngineOps& ops_;
  const ParameterLayout& layout_;
  const std::span<Bucket> buckets_;
  OptimizerState& state_;
  const UnitWeights& weights_;
  const UnitGradients& gradients_;
  SaveGate& gate_;
  const std::unique_ptr<DeviceAdamW> adamw_;
  std::vector<std::unique_ptr<Event>> current_;  // by bucket; null for the host's
  std::unique_ptr<StateTransfer> transfer_;      // null if the device owns nothing
  DeviceCounters counters_;
};

}  // namespace so
