#include "train/training_step.h"

#include <chrono>
#include <cmath>

#include "device/trace.h"
#include "model/flops.h"

namespace so {

TrainingStep::TrainingStep(const DecoderSpec& spec, ModelOnDevice& model, StepState& state, BatchSource& batches,
                           Stream& stream, bool recomputed)
    : spec_(spec), model_(model), state_(state), batches_(batches), stream_(stream), recomputed_(recomputed) {}

StepResult TrainingStep::run(double lr, std::int64_t update_number, const std::function<void()>& between) {
  using Clock = std::chrono::steady_clock;
  const TraceSpan span("step");
  const auto start = Clock::now();
  StepResult result;
  result.lr = lr;
  result.plan = batches_.next_step();
  const std::int64_t micro_batches = result.plan.micro_batches;
  // The step's loss is a mean over all its trained tokens, of every micro-batch and rank.
  const float grad_scale = static_cast<float>(1.0 / static_cast<double>(result.plan.trained_tokens));
  BatchUpload& upload = model_.upload();
  double loss_sum = 0;
  const auto add_loss = [&](std::int64_t micro_batch) {
    loss_sum += upload.receive_losses();
    if (!std::isfinite(loss_sum) && result.bad_micro_batch < 0) result.bad_micro_batch = micro_batch;
  };
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    batches_.micro_batch(i, batch_);
    if (i + 1 == micro_batches) state_.begin_last_micro_batch(lr, update_number);
    const DeviceBatch batch = upload.upload(stream_, batch_);
    model_.decoder().forward_backward(stream_, batch, state_.weights(), state_.gradients(), model_.arena(),
                                      upload.losses(), grad_scale);
    upload.send_losses(stream_);
    if (i > 0) add_loss(i - 1);  // the device has this one to do
    result.model_flops += model_flops(spec_, batch_.cu_seqlens);
    if (between) between();
    const std::int64_t row_length = batch_.rows == 0 ? 0 : batch_.padded_tokens / batch_.rows;
    result.reference_flops += reference_flops(spec_, batch_.rows, row_length, recomputed_);
  }
  result.verdict = state_.finish_step(stream_);
  add_loss(micro_batches - 1);
  result.loss = loss_sum / static_cast<double>(result.plan.trained_tokens);
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return result;
}

}  // namespace so
