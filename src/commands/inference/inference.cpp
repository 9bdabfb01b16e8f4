#include "commands/inference/inference.h"

#include <algorithm>

#include "base/error.h"
#include "base/sequence_slice.h"
#include "offload/sequence_group.h"
#include "plan/memory/activation_memory.h"
#include "plan/memory/memory_plan.h"
#include "plan/training_plan.h"
#include "ranks/communicator.h"

namespace so {
namespace {

ModelShape model_shape(const InferenceShape& shape) {
  return {.positions = shape.positions,
          .batch_tokens = longest_slice(shape.batch_tokens, shape.sequence),
          .cache_rows = shape.cache_capacity,
          .sequence_tokens = std::max<std::int64_t>(shape.batch_tokens, shape.sequence)};
}

std::size_t dry_run(const ModelFiles& model, Runtime& runtime, const InferenceShape& shape,
                    const DecoderSettings& settings, const MemoryRoom& room) {
  const DecoderSpec& spec = model.spec();
  const auto device = make_dry_device(backend_of(runtime.device()));
  const auto ops = make_ops(*device);
  const auto stream = device->create_stream("compute");
  DeviceWeights weights(*device, model.layout(), settings.formats.weights);
  const LoadingRing ring = make_loading_ring(*device, model.layout());
  const auto ranks = make_dry_communicator(shape.sequence);
  SequenceGroup group(*ranks, shape.sequence, *device, shape.collectives);
  ModelOnDevice on_device(*device, *ops, *stream, spec, model.layout(), settings, model_shape(shape), &group);
  on_device.make_arena(0);
  Arena& arena = on_device.arena();
  const std::int64_t n = shape.batch_tokens;
  const bool cached = shape.cache_capacity > 0;
  const std::int64_t all = std::max<std::int64_t>(n, shape.sequence);
  const DeviceBatch batch =
      shape.sequence == 1 ? on_device.upload().largest(n, cached ? 1 : n, shape.positions)
                          : on_device.upload().largest(longest_slice(all, shape.sequence), all, shape.positions, all);
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
  add_libraries(plan, backend_of(runtime.device()), settings.formats.activations, runtime.host_pool().size());
  const MemoryAdvice advice{.for_device = "use fewer tokens at a time, or a GPU with more memory",
                            .for_host = "use fewer tokens at a time, or a machine with more memory"};
  if (const auto refusal = room.misfit(plan, advice)) throw *refusal;
  return arena.high_water();
}

}  // namespace

Inference::Inference(const ModelFiles& model, Runtime& runtime, const NumberFormats& formats,
                     const InferenceShape& shape, const MemoryRoom& room, SequenceExchange* exchange)
    : stream_(runtime.device().create_stream("compute")) {
  DecoderSettings settings;
  settings.formats = formats;
  settings.loss_chunk_rows = choose_loss_chunk(backend_of(runtime.device()), model.spec().vocab);
  const std::size_t activation_bytes = dry_run(model, runtime, shape, settings, room);

  weights_ = std::make_unique<DeviceWeights>(runtime.device(), model.layout(), formats.weights);
  model_ = std::make_unique<ModelOnDevice>(runtime.device(), runtime.ops(), *stream_, model.spec(), model.layout(),
                                           settings, model_shape(shape), exchange);
  model_->make_arena(activation_bytes);
  model.load(*weights_, *stream_, runtime.host_pool());
}

}  // namespace so
