// One optimizer step: batches in, forward and backward, the verdict. Training and `bench step` run this same code; they
// differ in where the batches come from and in what becomes of the gradients.
#pragma once

#include <cstdint>
#include <functional>

#include "data/batches.h"
#include "model/model_on_device.h"
#include "offload/engine.h"

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

 private:
  OffloadEngine& engine_;
};

struct StepResult {
  StepPlan plan;
  Verdict verdict;
  double loss = 0;  // the mean over all trained tokens of the step
  double lr = 0, seconds = 0, model_flops = 0, reference_flops = 0;
  std::int64_t bad_micro_batch = -1;  // the first whose loss is not finite
};

class TrainingStep {
 public:
  // `recomputed`: layers keep their inputs alone, which the reference count of FLOPs asks about. All references must
  // outlive it.
  TrainingStep(const DecoderSpec& spec, ModelOnDevice& model, StepState& state, BatchSource& batches, Stream& stream,
               bool recomputed);

  // Takes the next step of the batches. `between` is called after each micro-batch has been enqueued, while the device
  // works. Waits for the verdict and the losses.
  StepResult run(double lr, std::int64_t update_number, const std::function<void()>& between = {});

 private:
  const DecoderSpec& spec_;
  ModelOnDevice& model_;
  StepState& state_;
  BatchSource& batches_;
  Stream& stream_;
  const bool recomputed_;
  MicroBatch batch_;
};

}  // namespace so
