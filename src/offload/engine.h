// The offload engine: weights and gradients on the device, fp32 master weights and AdamW moments in host memory, and
// the step that brings them together bucket by bucket.
//
// This is the synchronous schedule: gradients are produced, the verdict is taken, then bucket by bucket, lowest first,
// the gradient goes to the host, AdamW runs on the host's threads, and the weights go back; the next forward pass waits
// for the buckets of a unit only. Copies of one bucket run beside the update of another.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_pool.h"
#include "offload/bucket.h"
#include "offload/device_weights.h"
#include "offload/parameter_source.h"
#include "offload/save_gate.h"
#include "offload/verdict.h"
#include "optim/adamw.h"
#include "parallel/communicator.h"

namespace so {

struct EngineSettings {
  DType compute = DType::f32;        // weights on the device
  std::int64_t bucket_elements = 0;  // at most; a multiple of ParameterLayout::alignment
  AdamWHyper adamw;
  double weight_decay = 0, max_grad_norm = 0;
};

// What the engine did, for the log and for tests that must know that a path really ran. Totals since construction.
struct EngineCounters {
  std::int64_t steps = 0, skipped_steps = 0, clipped_steps = 0;
  std::int64_t committed_buckets = 0, discarded_buckets = 0;
  double adam_seconds = 0, gradient_wait_seconds = 0, save_wait_seconds = 0;
};

class OffloadEngine final : public WeightSource, public GradientSink {
 public:
  // `host_pool` runs AdamW. All references must outlive the engine. One thread at a time calls, but for the save
  // (below).
  OffloadEngine(Device& device, Ops& ops, ThreadPool& host_pool, Communicator& ranks, const ParameterLayout& layout,
                const EngineSettings& settings);
  // The compute stream must be idle or gone: its work may use the engine's memory.
  ~OffloadEngine() override;

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
  // or skips. On return host state is final; weights may still be on their way (require_weights waits).
  // `update_number` counts updates made before this one, plus one: AdamW's bias correction.
  Verdict finish_step(Stream& compute, double lr, std::int64_t update_number);

  // ---- Host state: arrays over the flat range. Valid to read between steps, and by a save (see gate()). ----
  const ParameterLayout& layout() const { return layout_; }
  std::span<float> master() { return flat(master_); }
  std::span<float> first_moment() { return flat(m_); }
  std::span<float> second_moment() { return flat(v_); }
  DType compute_dtype() const { return settings_.compute; }
  // After master() was written from outside: rounds it to the compute dtype and sends it to the device. Waits.
  void upload_weights();

  // A background save calls gate().begin() between steps on the engine's thread, then reads buckets in order from its
  // own, calling passed() after each and end() at last.
  SaveGate& gate() { return gate_; }
  std::span<const Bucket> buckets() const { return buckets_; }
  const EngineCounters& counters() const { return counters_; }

 private:
  struct Slot;  // pinned staging for one bucket

  std::span<float> flat(Buffer& buffer) const {
    return {static_cast<float*>(buffer.data()), static_cast<std::size_t>(layout_.elements())};
  }
  void send_gradient(const Bucket& bucket, Slot& slot);
  void update(Bucket& bucket, Slot& slot, const AdamWStep& step);
  void return_weights(Bucket& bucket, Slot& slot);
  bool meets(const Bucket& bucket, Range range) const;

  Device& device_;
  Ops& ops_;
  ThreadPool& host_pool_;
  Communicator& ranks_;
  const ParameterLayout& layout_;
  const EngineSettings settings_;

  DeviceWeights weights_;
  Buffer gradients_;           // f32, device
  Buffer stats_, stats_host_;  // GradStats per parameter, device and pinned
  Buffer master_, m_, v_;      // f32, pageable
  std::vector<Bucket> buckets_;
  std::vector<std::unique_ptr<Event>> weights_back_;  // per bucket: its weights are on the device
  std::vector<bool> written_;                         // per parameter: has a gradient in this step
  bool last_micro_batch_ = false;
  std::unique_ptr<Stream> to_host_, to_device_;
  std::unique_ptr<Event> gradients_complete_;
  std::vector<Slot> slots_;
  SaveGate gate_;
  EngineCounters counters_;
};

}  // namespace so
