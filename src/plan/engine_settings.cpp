#include "plan/engine_settings.h"

#include "offload/schedule/owner_split.h"

namespace so {

EngineSettings engine_settings(const RunRequest& request) {
  EngineSettings engine;
  engine.formats = model_formats(request.compute);
  engine.formats.gradients = choose_gradient_dtype(request.compute, request.gradient_accumulation_steps);
  engine.formats.moments = moments_dtype(request.optimizer_state_dtype);
  engine.bucket_elements = request.bucket_size / static_cast<std::int64_t>(sizeof(float));
  engine.schedule = request.mode == OffloadMode::superoffload ? Schedule::overlapped : Schedule::synchronous;
  // The cast is on the side that was asked for, and on the host if none was and nothing is measured.
  if (request.compute == DType::bf16 && request.cast_side == CastChoice::device) engine.cast = CastSide::device;
  engine.adamw = {request.adam_beta1, request.adam_beta2, request.adam_epsilon};
  engine.weight_decay = request.weight_decay;
  engine.max_grad_norm = request.max_grad_norm.value_or(0);
  return engine;
}

DType choose_gradient_dtype(DType compute, std::int64_t micro_batches) {
  return micro_batches == 1 ? compute : DType::f32;
}

std::optional<int> requested_device_units(const PlacementOptions& request, const ParameterLayout& layout,
                                          const Backend& backend) {
  if (request.offload_optimizer == OptimizerDevice::none) return layout.units();
  if (request.offload_ratio) return device_units_for_ratio(layout, *request.offload_ratio);
  return backend.own_memory ? std::nullopt : std::optional(0);
}

}  // namespace so
