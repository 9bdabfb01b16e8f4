#include "train/training_step.h"

#include <array>
#include <cmath>

#include "device/trace.h"
#include "model/flops.h"
#include "offload/engine_report.h"
#include "offload/idle_micro_batch.h"

namespace so {

TrainingStep::TrainingStep(const DecoderSpec& spec, const ParameterLayout& layout, ModelOnDevice& model,
                           StepState& state, Communicator& ranks, BatchSource& batches, Stream& stream, bool recomputed)
    : spec_(spec),
      layout_(layout),
      model_(model),
      state_(state),
      ranks_(ranks),
      batches_(batches),
      stream_(stream),
      recomputed_(recomputed),
      backward_(unit_backward(spec, layout)) {}

void TrainingStep::run_micro_batch(float grad_scale) {
  const TraceSpan span("enqueue micro-batch");
  const DeviceBatch batch = model_.upload().upload(stream_, batch_);
  model_.decoder().forward_backward(stream_, batch, state_.weights(), state_.gradients(), model_.arena(),
                                    model_.upload().losses(), grad_scale);
  model_.upload().send_losses(stream_);
}

StepResult TrainingStep::run(double lr, std::int64_t update_number, const std::function<void()>& between) {
  const TraceSpan span("step");
  const EngineCounters before = state_.counters();
  state_.begin_step();
  StepResult result;
  result.lr = lr;
  result.plan = batches_.next_step();
  const std::int64_t micro_batches = result.plan.micro_batches;
  // The step's loss is a mean over all its trained tokens, of every micro-batch and rank.
  const float grad_scale = static_cast<float>(1.0 / static_cast<double>(result.plan.trained_tokens));
  double loss_sum = 0;
  std::int64_t sent = -1;  // the micro-batch whose losses are on their way
  const auto add_loss = [&](std::int64_t next) {
    if (sent >= 0) loss_sum += model_.upload().receive_losses();
    if (!std::isfinite(loss_sum) && result.bad_micro_batch < 0) result.bad_micro_batch = sent;
    sent = next;
  };
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    batches_.micro_batch(i, batch_);
    if (i + 1 == micro_batches) state_.begin_last_micro_batch(lr, update_number);
    if (batch_.tokens == 0) {  // the end of an epoch has none for this rank
      run_idle_micro_batch(layout_, model_.decoder().remade_inputs(), state_.weights(), state_.gradients(), stream_);
      continue;
    }
    run_micro_batch(grad_scale);
    add_loss(i);  // the one before, while the device has this one to do
    // A slice's rank does its share of what its group does.
    const double share = batch_.sequence_tokens == 0
                             ? 1
                             : static_cast<double>(batch_.tokens) / static_cast<double>(batch_.sequence_tokens);
    result.model_flops += share * model_flops(spec_, batch_.cu_seqlens, backward_);
    if (between) between();
    const std::int64_t row_length = batch_.rows == 0 ? 0 : batch_.padded_tokens / batch_.rows;
    result.reference_flops += share * reference_flops(spec_, batch_.rows, row_length, recomputed_, backward_);
  }
  result.verdict = state_.finish_step(stream_);
  add_loss(-1);
  std::array<double, 3> sums{loss_sum, result.model_flops, result.reference_flops};
  ranks_.all_reduce_sum(sums);
  result.model_flops = sums[1];
  result.reference_flops = sums[2];
  result.loss = sums[0] / static_cast<double>(result.plan.trained_tokens);
  result.counters = since(state_.counters(), before);
  result.seconds = result.counters.seconds;
  return result;
}

}  // namespace so
