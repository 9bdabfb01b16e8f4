#include "options/run_request.h"

#include "base/error.h"

namespace so {

NumberFormats number_formats(const RunRequest& request) {
  NumberFormats formats = model_formats(request.model_dtype);
  const bool narrow = request.grad_accum_dtype == SumPrecision::bf16;
  if (narrow && formats.weights != DType::bf16)
    fail("--grad_accum_dtype bf16 needs a model in bf16, and this one is in {}: add --dtype bf16, or leave it out",
         name_of(formats.weights));
  // With one micro-batch a step writes each gradient once, so that a bf16 one is rounded once, as in PyTorch.
  // Micro-batches are added up in fp32 unless bf16 is asked for. So are ranks, and then their sum is rounded. (The
  // output projection's gradient is added up over a few chunks of rows, and with a tied embedding over its two uses,
  // and rounded as often.)
  const bool written_once = request.gradient_accumulation_steps == 1;
  formats.gradients = written_once || narrow ? formats.weights : DType::f32;
  formats.rank_sums = narrow ? formats.weights : DType::f32;
  formats.moments = moments_dtype(request.optimizer_state_dtype);
  check_formats(formats);
  return formats;
}

}  // namespace so
