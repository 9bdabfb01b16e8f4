// One optimizer step: batches in, forward and backward, the verdict. Training and `bench step` run this same code; they
// differ in where the batches come from and in what becomes of the gradients.
#pragma once

#include <cstdint>
#include <functional>

#include "data/batches.h"
#include "model/flops.h"
#include "model/model_on_device.h"
#include "offload/engine.h"
#include "ranks/communicator.h"

namespace so {

// Where a step finds its weights and leaves its gradients, and what becomes of them.
class StepState {
 public:
  virtual ~StepState() = default;
  virtual WeightSource& weights() = 0;
  virtual GradientSink& gradients() = 0;
  // The two ends of a step's last micro-batch; OffloadEngine says what they promise.
  virtual void begin_last_micro_batch(double lr, std::int64_t update_number) = 0;
  virtual Verdict finish_step(Stream& stream) = 0;
  virtual void begin_step() = 0;
  virtual EngineCounters counters() const = 0;  // at least the seconds that have passed
};

// The engine's weights, gradients and updates.
class EngineState final : public StepState {
 public:
  explicit EngineState(OffloadEngine& engine) : engine_(engine) {}
  WeightSource& weights() override { return engine_; }
  GradientSink& gradients() override { return engine_; }
  void begin_last_micro_batch(double lr, std::int64_t update_number) override {
    engine_.begin_last_micro_batch(lr, update_number);
  }
  Verdict finish_step(Stream& stream) override { return engine_.finish_step(stream); }
  void begin_step() override { engine_.begin_step(); }
  EngineCounters counters() const override { return engine_.counters(); }

 private:
  OffloadEngine& engine_;
};

struct StepResult {
  StepPlan plan;
  Verdict verdict;
  double loss = 0;  // the mean over all trained tokens of the step, of all ranks
  double lr = 0, seconds = 0;
  double model_flops = 0, reference_flops = 0;  // of all ranks
  EngineCounters counters;                      // of the step on this rank; its seconds are theirs
  std::int64_t bad_micro_batch = -1;            // the first of this rank whose loss is not finite
};

class TrainingStep {
 public:
  // `ranks`: those that share the step; `batches` yields this one's micro-batches of it. `recomputed`: layers keep
  // their inputs alone, which the reference count of FLOPs asks about. All references must outlive it.
  TrainingStep(const DecoderSpec& spec, const ParameterLayout& layout, ModelOnDevice& model, StepState& state,
               Communicator& ranks, BatchSource& batches, Stream& stream, bool recomputed);

  // Takes the next step of the batches. `between` is called after each micro-batch has been enqueued, while the device
  // works. Waits for the verdict and the losses.
  StepResult run(double lr, std::int64_t update_number, const std::function<void()>& between = {});

 private:
  void run_micro_batch(float grad_scale);

  const DecoderSpec& spec_;
  const ParameterLayout& layout_;
  ModelOnDevice& model_;
  StepState& state_;
  Communicator& ranks_;
  BatchSource& batches_;
  Stream& stream_;
  const bool recomputed_;
  const std::vector<UnitBackward> backward_;
  MicroBatch batch_;
};

}  // namespace so
