// The offload engine: weights and gradients on the device, fp32 master weights and AdamW moments where each bucket's
// owner keeps them, and the step that brings them together bucket by bucket.
//
// This is the synchronous schedule: gradients are produced, the verdict is taken, then every bucket is updated. What
// the device owns is updated in place, on the stream that computed the gradients. What the host owns follows bucket by
// bucket, lowest first: the gradient goes to the host, AdamW runs on the host's threads, and the weights go back;
// copies of one bucket run beside the update of another. The next forward pass waits for the buckets of a unit only.
// Both owners give the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "offload/bucket.h"
#include "offload/device_weights.h"
#include "offload/optimizer_state.h"
#include "offload/parameter_source.h"
#include "offload/save_gate.h"
#include "offload/staging_ring.h"
#include "offload/state_transfer.h"
#include "offload/verdict.h"
#include "offload/weight_piece.h"
#include "optim/adamw.h"
#include "optim/device_adamw.h"
#include "parallel/communicator.h"

namespace so {

// When the host updates what it owns: all of it after the verdict and before the next step, or beside the device's
// work.
enum class Schedule : std::uint8_t { synchronous, overlapped };

struct EngineSettings {
  DType compute = DType::f32;    // weights on the device
  DType gradients = DType::f32;  // or compute: enough where a step writes each gradient once
  Owner owner = Owner::host;     // of all buckets of the units that device_units leaves
  int device_units = 0;          // units [0, device_units) of the layout are the device's
  Schedule schedule = Schedule::synchronous;
  std::int64_t undo_buckets = 0;     // places for new state beside the old, each of a bucket
  std::int64_t bucket_elements = 0;  // at most; a multiple of ParameterLayout::alignment
  AdamWHyper adamw;
  double weight_decay = 0, max_grad_norm = 0;
};

// What the engine did, for the log and for tests that must know that a path really ran. Totals since construction.
struct EngineCounters {
  std::int64_t steps = 0, skipped_steps = 0, clipped_steps = 0;
  std::int64_t committed_buckets = 0, discarded_buckets = 0;
  std::int64_t device_updates = 0;  // of the committed buckets, those the device updated
  double adam_seconds = 0, gradient_wait_seconds = 0, save_wait_seconds = 0;  // of the host
};

class OffloadEngine final : public WeightSource, public GradientSink {
 public:
  // `host_pool` runs AdamW. All references must outlive the engine. One thread at a time calls, but for the save
  // (below).
  OffloadEngine(Device& device, Ops& ops, ThreadPool& host_pool, Communicator& ranks, const ParameterLayout& layout,
                const EngineSettings& settings);
  // The compute stream must be idle or gone: its work may use the engine's memory.
  ~OffloadEngine() override = default;

  // WeightSource
  void require_weights(int unit, Stream& stream) override;
  void release_weights(int, Stream&) override {}
  Tensor weight(int first, int count = 1) const override { return weights_.weight(first, count); }

  // GradientSink
  Target gradient(int first, int count = 1) override;
  void gradients_ready(int unit, Stream& stream) override;

  // The micro-batch about to run is the last of its optimizer step: its gradients complete the step's.
  void begin_last_micro_batch() { last_micro_batch_ = true; }
  // After the last micro-batch has been enqueued on `compute`: waits for its gradients, takes the verdict and updates,
  // or skips. On return the host's state is final; the device's update, and weights on their way to it, may still run:
  // require_weights() and read_state() wait. `update_number` counts updates made before this one, plus one: AdamW's
  // bias correction.
  Verdict finish_step(Stream& compute, double lr, std::int64_t update_number);

  const ParameterLayout& layout() const { return layout_; }
  DType compute_dtype() const { return settings_.compute; }

  // ---- Optimizer state, whoever owns it. Between steps, or by a save (see gate()); one thread at a time. ----
  // Calls body(begin, values) for pieces of `range` of the flat range, in order; the values, which begin at element
  // `begin`, hold during the call. Padding belongs to the range. Host-owned state is given as it lies.
  using ReadBody = std::function<void(std::int64_t begin, std::span<const float> values)>;
  void read_state(StateArray array, Range range, const ReadBody& body);
  // Calls fill(begin, values) for pieces of `range`, whose contents are replaced. Weights follow by upload_weights().
  using WriteBody = std::function<void(std::int64_t begin, std::span<float> values)>;
  void write_state(StateArray array, Range range, const WriteBody& fill);
  // Loading: weights come in pieces, in these forms where the file has them in `stored`. Each becomes master weights
  // and weights in compute dtype; upload_weights() is not needed then. Enqueues on `stream`, and writes host-owned
  // state itself. When all pieces are placed the caller synchronizes the stream.
  WeightForms forms(DType stored) const;
  void place_weights(Stream& stream, const WeightPiece& piece);
  // After master weights were written: rounds them to the compute dtype into the device's weights. Waits. `compute` is
  // the stream of the model.
  void upload_weights(Stream& compute);

  // A background save calls gate().begin() between steps on the engine's thread, then reads buckets in order from its
  // own, calling passed() after each and end() at last.
  SaveGate& gate() { return gate_; }
  std::span<const Bucket> buckets() const { return buckets_; }
  const EngineCounters& counters() const { return counters_; }

 private:
  void update_on_device(Bucket& bucket, Stream& compute, const AdamWStep& step);
  void update_on_host(const AdamWStep& step);
  void run_adamw(const Bucket& bucket, StagingRing::Slot& slot, const AdamWStep& step);
  void committed(Bucket& bucket);
  bool meets(const Bucket& bucket, Range range) const;
  std::size_t gradient_bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * size_of(settings_.gradients);
  }
  void* gradient_at(std::int64_t element) const {
    return static_cast<std::byte*>(gradients_.data()) + gradient_bytes(element);
  }
  OptimizerState& state_of(const Bucket& bucket) { return bucket.owner() == Owner::host ? host_state_ : device_state_; }
  // Marks that the bucket's weights on the device, and its state if the device owns it, are those of the last update.
  Event& current(const Bucket& bucket) { return *current_[static_cast<std::size_t>(bucket.index())]; }

  Device& device_;
  Ops& ops_;
  ThreadPool& host_pool_;
  Communicator& ranks_;
  const ParameterLayout& layout_;
  const EngineSettings settings_;

  DeviceWeights weights_;
  Buffer gradients_;           // device
  Buffer stats_, stats_host_;  // GradStats per parameter, device and pinned
  std::vector<Bucket> buckets_;
  std::vector<int> host_owned_;  // indices of buckets
  OptimizerState host_state_, device_state_;
  std::vector<std::unique_ptr<Event>> current_;  // per bucket
  std::vector<bool> written_;                    // per parameter: has a gradient in this step
  bool last_micro_batch_ = false;
  std::unique_ptr<Event> gradients_complete_;
  StagingRing ring_;                         // of the host-owned
  std::unique_ptr<StateTransfer> transfer_;  // of the device-owned; null without them
  std::unique_ptr<DeviceAdamW> device_adamw_;
  SaveGate gate_;
  EngineCounters counters_;
};

}  // namespace so
