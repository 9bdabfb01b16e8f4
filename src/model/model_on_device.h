// ModelOnDevice has what a model takes of a device beside its weights and their state: the RoPE table, the decoder,
// host memory for layer inputs, the arena of activations, the buffers for batches and the KV cache. A run, a benchmark,
// text generation and every plan build it with this class, so what a dry device counts is what a run takes.
#pragma once

#include <cstdint>
#include <optional>

#include "device/arena.h"
#include "model/batch_upload.h"
#include "model/decoder/decoder.h"
#include "offload/memory/activation_store.h"
#include "offload/memory/sequence_exchange.h"
#include "offload/schedule/parameter_layout.h"

namespace so {

// The largest work that the model is made for.
struct ModelShape {
  std::int64_t positions = 0;             // the longest document
  std::int64_t batch_tokens = 0;          // no batch, or slice of one, has more
  std::int64_t kept_tokens = 0;           // none with a backward pass has more; 0: there is no backward pass
  std::int64_t kept_sequence_tokens = 0;  // nor all slices of one together
  std::int64_t longest_kept = 0;          // the longest document of such a batch
  std::int64_t cache_rows = 0;            // rows of the KV cache; 0: there is none
  // All slices of a batch have no more together; where batches are whole, anything up to batch_tokens.
  std::int64_t sequence_tokens = 0;
};

// Bytes of a layer's input: an item of the activation store.
std::size_t layer_input_bytes(const DecoderSpec& spec, DType activations, std::int64_t tokens);

class ModelOnDevice {
 public:
  // The spec, the layout, the ops and the exchange (Decoder) must outlive it. Waits until the table is there; a dry
  // device gets none, since it would be computed for nobody.
  ModelOnDevice(Device& device, Ops& ops, Stream& stream, const DecoderSpec& spec, const ParameterLayout& layout,
                const DecoderSettings& settings, const ModelShape& shape, SequenceExchange* exchange = nullptr);

  // The arena comes last, once loading has given back what it took; on a dry device it has no limit.
  void make_arena(std::size_t bytes);

  const Decoder& decoder() const { return decoder_; }
  Arena& arena() { return *arena_; }
  BatchUpload& upload() { return upload_; }
  KvCache& cache() { return cache_; }  // empty at first
  const RopeRows& rope_rows() const { return rope_rows_; }

 private:
  Device& device_;
  const RopeRows rope_rows_;
  const Buffer rope_, selection_biases_, cache_memory_;
  KvCache cache_;
  ActivationStore store_;
  const Decoder decoder_;
  BatchUpload upload_;
  std::optional<Arena> arena_;
};

}  // namespace so
