// Random weights and tokens, for measuring: no files.
#pragma once

#include <cstdint>
#include <utility>

#include "base/thread_pool.h"
#include "data/batches.h"
#include "device/device.h"
#include "model/spec.h"
#include "offload/engine.h"

namespace so {

// What randomize() of model/random_weights.h does for the engine's fp32 master weights, drawn by the pool's threads
// where they lie, from nearly the normal distribution, and the weights made from them: models of tens of gigabytes are
// ready in seconds.
void randomize(OffloadEngine& engine, const DecoderSpec& spec, ThreadPool& pool, Stream& stream);

// `documents` documents of `length` uniformly random tokens; every token's target is the next one of its document.
MicroBatch random_batch(const DecoderSpec& spec, std::int64_t documents, std::int64_t length, std::uint64_t seed);

// Every step is the same micro-batch, repeated; each rank has one of this size.
class RepeatedBatch final : public BatchSource {
 public:
  // `ranks`: those that have batches of their own, where those that split one count as one; `sequence`: which slice of
  // it is this rank's.
  RepeatedBatch(MicroBatch batch, std::int64_t micro_batches, std::int64_t ranks, const SequencePlace& sequence)
      : batch_(std::move(batch)), micro_batches_(micro_batches), ranks_(ranks), sequence_(sequence) {}
  StepPlan next_step() override {
    const std::int64_t all = micro_batches_ * ranks_;
    return {.index = steps_++,
            .micro_batches = micro_batches_,
            .rows = all * batch_.rows,
            .tokens = all * batch_.tokens,
            .trained_tokens = all * batch_.trained_tokens};
  }
  void micro_batch(std::int64_t, MicroBatch& out) const override {
    out = batch_;
    take_slice(out, sequence_);
  }

 private:
  const MicroBatch batch_;
  const std::int64_t micro_batches_, ranks_;
  const SequencePlace sequence_;
  std::int64_t steps_ = 0;
};

}  // namespace so
