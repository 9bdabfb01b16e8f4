#include "options/run_request.h"

namespace so {

NumberFormats number_formats(const RunRequest& request) {
  NumberFormats formats = model_formats(request.model_dtype);
  // With one micro-batch a step writes each gradient once, so that a bf16 one is rounded once, as in PyTorch.
  // Micro-batches, and ranks, are added up in fp32. (The output projection's gradient is added up over a few chunks of
  // rows, and with a tied embedding over its two uses, and rounded as often.)
  formats.gradients = request.gradient_accumulation_steps == 1 && request.gpus == 1 ? formats.weights : DType::f32;
  formats.moments = moments_dtype(request.optimizer_state_dtype);
  check_formats(formats);
  return formats;
}

}  // namespace so
