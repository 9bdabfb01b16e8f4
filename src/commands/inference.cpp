#include "commands/inference.h"

#include "base/error.h"
#include "model/rope.h"
#include "plan/fits.h"
#include "plan/memory_plan.h"
#include "plan/training_plan.h"

namespace so {
namespace {

// The memory beside weights and activations, and the views into it. The same code on the dry device and the real one.
struct Memory {
  Memory(Device& device, const DecoderSpec& spec, DType compute, const InferenceShape& shape) {
    const std::int64_t half = spec.rope.rotary_dim / 2;
    rope = device.allocate(MemoryKind::device, static_cast<std::size_t>(shape.positions * 2 * half) * sizeof(float),
                           "RoPE table");
    rope_table = Tensor(rope.data(), DType::f32, {shape.positions, 2, half});
    if (shape.cache_capacity == 0) return;
    const std::int64_t width = 2 * spec.kv_width();
    const std::size_t layer_bytes = static_cast<std::size_t>(shape.cache_capacity * width) * size_of(compute);
    cache_memory = device.allocate(MemoryKind::device, static_cast<std::size_t>(spec.layers) * layer_bytes, "KV cache");
    for (std::int64_t layer = 0; layer < spec.layers; ++layer)
      cache.layers.emplace_back(
          static_cast<std::byte*>(cache_memory.data()) + static_cast<std::size_t>(layer) * layer_bytes, compute,
          std::initializer_list<std::int64_t>{shape.cache_capacity, width});
  }
  Buffer rope, cache_memory;
  Tensor rope_table;
  KvCache cache;
};

std::size_t dry_run(const ModelFiles& model, Runtime& runtime, DType compute, const InferenceShape& shape,
                    const DecoderSettings& settings) {
  const DecoderSpec& spec = model.spec();
  const auto device = make_dry_device(runtime.device().kind());
  const auto ops = make_ops(*device);
  const auto stream = device->create_stream("compute");
  DeviceWeights weights(*device, model.layout(), compute);
  const LoadingRing ring = make_loading_ring(*device, model.layout());
  Memory memory(*device, spec, compute, shape);
  const Decoder decoder(spec, model.layout(), *ops, memory.rope_table, settings);
  Arena arena(*device, MemoryKind::device, "activations", 0);
  const std::int64_t n = shape.batch_tokens;
  DeviceBatch batch;
  batch.ids = batch.targets = batch.positions = Tensor(memory.rope.data(), DType::i32, {n});
  batch.spans.documents = shape.cache_capacity > 0 ? 1 : n;                     // at most
  memory.cache.used = shape.cache_capacity > 0 ? shape.cache_capacity - n : 0;  // the most keys there will be
  if (shape.logits_rows == 0)
    decoder.forward_loss(*stream, batch, weights, arena, Tensor(memory.rope.data(), DType::f32, {n}));
  else
    decoder.forward_logits(*stream, batch, weights, arena,
                           Tensor(memory.rope.data(), DType::f32, {std::min(n, shape.logits_rows), spec.vocab}),
                           shape.cache_capacity > 0 ? &memory.cache : nullptr);
  MemoryPlan plan;
  plan.add(device->ledger());
  plan.add(MemoryKind::device, "activations", arena.high_water());
  add_libraries(plan, runtime.device().kind(), runtime.host_pool().size());
  require_fits(plan, runtime.device(), "use fewer tokens at a time, or a GPU with more memory",
               "use fewer tokens at a time, or a machine with more memory");
  return arena.high_water();
}

}  // namespace

Inference::Inference(const ModelFiles& model, Runtime& runtime, DType compute, const InferenceShape& shape)
    : stream_(runtime.device().create_stream("compute")) {
  DecoderSettings settings;
  settings.compute = compute;
  settings.loss_chunk_rows = choose_loss_chunk(runtime.device().kind(), model.spec().vocab);
  const std::size_t activation_bytes = dry_run(model, runtime, compute, shape, settings);

  weights_ = std::make_unique<DeviceWeights>(runtime.device(), model.layout(), compute);
  Memory memory(runtime.device(), model.spec(), compute, shape);
  rope_ = std::move(memory.rope);
  cache_memory_ = std::move(memory.cache_memory);
  cache_ = std::move(memory.cache);
  const std::vector<float> table = rope_table(model.spec().rope, shape.positions);
  stream_->copy(rope_.data(), table.data(), rope_.bytes());
  stream_->synchronize();
  decoder_ = std::make_unique<Decoder>(model.spec(), model.layout(), runtime.ops(), memory.rope_table, settings);
  arena_ = std::make_unique<Arena>(runtime.device(), MemoryKind::device, "activations", activation_bytes);
  model.load(*weights_, *stream_, runtime.host_pool());
}

}  // namespace so
