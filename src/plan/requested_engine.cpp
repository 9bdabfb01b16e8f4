#include "plan/requested_engine.h"

#include <algorithm>

#include "base/error.h"
#include "device/backend.h"
#include "model/fp8_layers.h"
#include "offload/engine_settings.h"
#include "offload/schedule/placement.h"
#include "options/run_request.h"

namespace so {

DecoderSpec requested_spec(DecoderSpec spec, const StepOptions& options, const std::string& model) {
  const KeptLayers kept = kept_layers(options);
  if (options.fp8) use_fp8(spec, kept.first, kept.last, model);
  return spec;
}

EngineSettings engine_settings(const RunRequest& request) {
  EngineSettings engine;
  engine.formats = number_formats(request);
  engine.placement.bucket_elements = request.bucket_size / static_cast<std::int64_t>(sizeof(float));
  engine.placement.schedule = request.mode == OffloadMode::superoffload ? Schedule::overlapped : Schedule::synchronous;
  // On the host it takes no step of its own, whatever the format.
  if (engine.formats.weights == DType::f32 && request.cast_side == CastChoice::device)
    fail("--cast_side device: weights are fp32, so nothing is cast; remove it, or train in bf16 (--dtype bf16)");
  // The cast is on the side that was asked for, and on the host if none was and nothing is measured.
  if (request.cast_side == CastChoice::device) engine.placement.cast = CastSide::device;
  engine.placement.over_link = request.update_over_link == Toggle::on;
  // Where no GPUs have settled it, as those of one host would that reach each other.
  engine.collectives = request.collectives == CollectiveRoute::automatic ? CollectiveRoute::p2p : request.collectives;
  engine.adamw = {request.adam_beta1, request.adam_beta2, request.adam_epsilon};
  engine.weight_decay = request.weight_decay;
  engine.max_grad_norm = request.max_grad_norm.value_or(0);
  return engine;
}

std::optional<int> requested_device_units(const PlacementOptions& request, const ParameterLayout& layout,
                                          const Backend& backend) {
  if (request.offload_optimizer == OptimizerDevice::none) return layout.units();
  if (request.offload_ratio) return device_units_for_ratio(layout, *request.offload_ratio);
  if (backend.own_memory) return std::nullopt;
  return backend.own_processors ? layout.units() : 0;  // where memory is shared, nothing is gained on the host
}

int most_gathered_units(const PlacementOptions& request, const ParameterLayout& layout, int ranks) {
  const int most = ranks == 1 ? 0 : most_gathered_units(layout.units());
  return std::min(most, request.gathered_layers.value_or(most));
}

}  // namespace so
