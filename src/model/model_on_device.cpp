#include "model/model_on_device.h"

#include <vector>

#include "model/rope.h"

namespace so {
namespace {

Buffer make_rope(Device& device, Stream& stream, const DecoderSpec& spec, std::int64_t positions) {
  Buffer buffer = device.allocate(MemoryKind::device, rope_table_bytes(spec, positions), "RoPE table");
  if (!device.backed()) return buffer;
  const std::vector<float> table = rope_table(spec, positions);
  stream.copy(buffer.data(), table.data(), buffer.bytes());
  stream.synchronize();
  return buffer;
}

// What routers add where they choose: zeros where no file has said so. Empty where they add nothing.
Buffer make_selection_biases(Device& device, Stream& stream, const DecoderSpec& spec) {
  if (!spec.experts.selection_bias) return {};
  std::vector<float> values = spec.selection_biases;
  values.resize(static_cast<std::size_t>(spec.layers * spec.experts.count));
  Buffer buffer = device.allocate(MemoryKind::device, values.size() * sizeof(float), "routers' selection biases");
  if (!device.backed()) return buffer;
  stream.copy(buffer.data(), values.data(), buffer.bytes());
  stream.synchronize();
  return buffer;
}

// Lays out the cache from `memory` on, which may be null.
struct CacheLayout {
  CacheLayout(std::byte* memory, const DecoderSpec& spec, DType activations, std::int64_t rows) : memory_(memory) {
    if (rows == 0) return;
    const DeltaSpec& d = spec.delta;
    const StateSpaceSpec& space = spec.state_space;
    for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
      LayerCache& of_layer = cache.layers.emplace_back();
      if (spec.is_delta(layer)) {
        of_layer.state = take(DType::f32, {d.v_heads, d.k_dim, d.v_dim});
        of_layer.convolution = take(activations, {d.convolution - 1, d.convolved_width()});
      } else if (spec.is_state_space(layer)) {
        of_layer.state = take(DType::f32, {space.heads, space.state, space.head_dim});
        of_layer.convolution = take(activations, {space.convolution - 1, space.convolved_width()});
      } else if (spec.attends(layer) && spec.layer(layer).keys_of < 0) {
        of_layer.keys_values = take(activations, {rows, 2 * spec.shape(layer).kv_width()});
      }
    }
  }

  KvCache cache;
  std::size_t bytes = 0;

 private:
  Tensor take(DType dtype, std::initializer_list<std::int64_t> shape) {
    constexpr std::size_t alignment = 256;
    const Tensor tensor(memory_ == nullptr ? nullptr : memory_ + bytes, dtype, shape);
    bytes += (tensor.bytes() + alignment - 1) / alignment * alignment;
    return tensor;
  }
  std::byte* memory_;
};

Tensor selection_table(const Buffer& memory, const DecoderSpec& spec) {
  if (!spec.experts.selection_bias) return {};
  return {memory.data(), DType::f32, {spec.layers * spec.experts.count}};
}

std::size_t cache_bytes(const DecoderSpec& spec, DType activations, std::int64_t rows) {
  return CacheLayout(nullptr, spec, activations, rows).bytes;
}

KvCache make_cache(const Buffer& memory, const DecoderSpec& spec, DType activations, std::int64_t rows) {
  return CacheLayout(static_cast<std::byte*>(memory.data()), spec, activations, rows).cache;
}

DecoderSettings for_largest_batch(DecoderSettings settings, const ModelShape& shape) {
  settings.most_tokens = shape.kept_sequence_tokens;
  settings.longest_document = shape.longest_kept;
  return settings;
}

}  // namespace

std::size_t layer_input_bytes(const DecoderSpec& spec, DType activations, std::int64_t tokens) {
  return static_cast<std::size_t>(tokens * spec.hidden) * size_of(activations);
}

ModelOnDevice::ModelOnDevice(Device& device, Ops& ops, Stream& stream, const DecoderSpec& spec,
                             const ParameterLayout& layout, const DecoderSettings& settings, const ModelShape& shape,
                             SequenceExchange* exchange)
    : device_(device),
      rope_rows_(spec, shape.positions),
      rope_(make_rope(device, stream, spec, shape.positions)),
      selection_biases_(make_selection_biases(device, stream, spec)),
      cache_memory_(device.allocate(MemoryKind::device,
                                    cache_bytes(spec, settings.formats.activations, shape.cache_rows), "KV cache")),
      cache_(make_cache(cache_memory_, spec, settings.formats.activations, shape.cache_rows)),
      store_(device, kept_on_host(settings.keep),
             layer_input_bytes(spec, settings.formats.activations, shape.kept_tokens)),
      decoder_(spec, layout, ops, Tensor(rope_.data(), DType::f32, {rope_width(spec) * rope_rows_.count()}),
               for_largest_batch(settings, shape), selection_table(selection_biases_, spec), &store_, exchange),
      upload_(device, shape.batch_tokens, shape.sequence_tokens, rope_rows_) {}

void ModelOnDevice::make_arena(std::size_t bytes) { arena_.emplace(device_, MemoryKind::device, "activations", bytes); }

}  // namespace so
