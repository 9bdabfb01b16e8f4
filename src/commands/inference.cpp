#include "commands/inference.h"

#include "base/error.h"
#include "plan/memory/memory_plan.h"
#include "plan/training_plan.h"

namespace so {
namespace {

ModelShape model_shape(const InferenceShape& shape) {
  return {.positions = shape.positions, .batch_tokens = shape.batch_tokens, .cache_rows = shape.cache_capacity};
}

std::size_t dry_run(const ModelFiles& model, Runtime& runtime, const InferenceShape& shape,
                    const DecoderSettings& settings, const MemoryRoom& room) {
  const DecoderSpec& spec = model.spec();
  const auto device = make_dry_device(backend_of(runtime.device()));
  const auto ops = make_ops(*device);
  const auto stream = device->create_stream("compute");
  DeviceWeights weights(*device, model.layout(), settings.formats.weights);
  const LoadingRing ring = make_loading_ring(*device, model.layout());
  ModelOnDevice on_device(*device, *ops, *stream, spec, model.layout(), settings, model_shape(shape));
  on_device.make_arena(0);
  Arena& arena = on_device.arena();
  const std::int64_t n = shape.batch_tokens;
  const bool cached = shape.cache_capacity > 0;
  const DeviceBatch batch = on_device.upload().largest(n, cached ? 1 : n, shape.positions);
  const Tensor losses = on_device.upload().losses();
  KvCache& cache = on_device.cache();
  cache.used = cached ? shape.cache_capacity - n : 0;  // the most keys there will be
  if (shape.logits_rows == 0)
    on_device.decoder().forward_loss(*stream, batch, weights, arena, losses);
  else
    on_device.decoder().forward_logits(*stream, batch, weights, arena,
                                       Tensor(losses.data(), DType::f32, {std::min(n, shape.logits_rows), spec.vocab}),
                                       cached ? &cache : nullptr);
  MemoryPlan plan;
  plan.add(device->ledger());
  plan.add(MemoryKind::device, "activations", arena.high_water());
  add_libraries(plan, backend_of(runtime.device()), runtime.host_pool().size());
  const MemoryAdvice advice{.for_device = "use fewer tokens at a time, or a GPU with more memory",
                            .for_host = "use fewer tokens at a time, or a machine with more memory"};
  if (const auto refusal = room.misfit(plan, advice)) throw *refusal;
  return arena.high_water();
}

}  // namespace

Inference::Inference(const ModelFiles& model, Runtime& runtime, const NumberFormats& formats,
                     const InferenceShape& shape, const MemoryRoom& room)
    : stream_(runtime.device().create_stream("compute")) {
  DecoderSettings settings;
  settings.formats = formats;
  settings.loss_chunk_rows = choose_loss_chunk(backend_of(runtime.device()), model.spec().vocab);
  const std::size_t activation_bytes = dry_run(model, runtime, shape, settings, room);

  weights_ = std::make_unique<DeviceWeights>(runtime.device(), model.layout(), formats.weights);
  model_ = std::make_unique<ModelOnDevice>(runtime.device(), runtime.ops(), *stream_, model.spec(), model.layout(),
                                           settings, model_shape(shape));
  model_->make_arena(activation_bytes);
  model.load(*weights_, *stream_, runtime.host_pool());
}

}  // namespace so
