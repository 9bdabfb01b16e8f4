// The decoder: forward, backward, and forward with a KV cache, written once for every family and device. This is the
// one header of the folder that others need, beside keep.h; decoder.cpp says what the parts are.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/number_formats.h"
#include "device/arena.h"
#include "model/decoder/keep.h"
#include "model/spec.h"
#include "offload/memory/parameter_source.h"
#include "ops/ops.h"

namespace so {

class ActivationStore;
class ParameterLayout;
class SequenceExchange;

// Device views of one micro-batch: N tokens of `documents` documents, without padding. Where its tokens are split among
// ranks, the slice of this rank, and the documents of all.
struct DeviceBatch {
  Tensor ids, positions;     // i32 [N]
  Tensor targets;            // i32 [N], negative where there is no loss; empty when only logits are wanted
  Tensor loss_rows;          // i32 [M]: the rows that have a target, ascending; may be empty (then they are looked for)
  std::int64_t trained = 0;  // M, of all slices; what the router's loss counts by
  AttentionSpans spans;      // cu_q == cu_k; scale, window and sinks are filled in by the decoder
  std::int64_t sequence_tokens = 0;  // of all slices; 0: the micro-batch is whole
  std::int64_t tokens() const { return ids.size(); }
  std::int64_t all_tokens() const { return is_slice() ? sequence_tokens : tokens(); }
  bool is_slice() const { return sequence_tokens > 0; }
};

// A layer's memory of the tokens that it has seen: keys and values of attention, or the state of a delta layer or state
// space and the rows that the convolution of the next token reads. A layer that attends to another's keys, and one
// whose tokens do not meet, has none.
struct LayerCache {
  Tensor keys_values;  // T [capacity, 2 * kv_width], keys first (rotated), then values
  Tensor convolution;  // T [convolution - 1, convolved_width], of the last tokens
  Tensor state;        // f32 [v_heads, k_dim, v_dim], or of a state space [heads, state, head_dim]
};
// A text seen so far. States cannot go back in it: used may only be set to 0, which begins anew.
struct KvCache {
  std::vector<LayerCache> layers;
  std::int64_t used = 0;  // tokens
};

struct DecoderSettings {
  NumberFormats formats;             // the decoder reads activations: T of the ops
  std::vector<Keep> keep;            // by layer; empty: all layers keep all
  std::int64_t loss_chunk_rows = 0;  // rows of logits that exist at a time
  // Tokens of a tile; 0: no tiles. A layer works tile by tile on what it does not keep: the part before attention, and
  // a dense MLP if gate and up are not kept. Attention itself works on the whole batch. Larger batches then take less
  // memory, and a weight's gradient is the fp32 sum over its tiles, in order, rounded once.
  std::int64_t tile_rows = 0;
  bool roomy_attention = false;  // as much scratch for attention's gradient as is of use
  bool any_order = false;        // AttentionSpans::any_order
  float label_smoothing = 0;     // of the loss, Ops::LinearCrossEntropy
  // The largest batch with a backward pass, which the arena is planned for: its tokens, of all slices, and those of its
  // longest document; 0: not known.
  std::int64_t most_tokens = 0, longest_document = 0;
};

// Sees what a forward pass computes, in the order of computation, before the memory is used again: it may enqueue work
// on the stream that reads `values`. Units as the parameters have them.
using ForwardObserver = std::function<void(int unit, std::string_view what, Tensor values)>;

// Owns no device memory: the RoPE table is the caller's, and activations come from the arena of each call. All calls
// only enqueue, on one stream. Weights are read through WeightSource, gradients are written through GradientSink. It
// can be neither copied nor moved.
class Decoder {
 public:
  // rope_table: f32 on the device, as rope_table() of model/rope.h makes it. selection_biases: f32 on the device, those
  // of the spec; empty: all are 0. `store`: host memory for the inputs of
  // layers with Keep::host, an item of [tokens, hidden] each; null if there are none. `exchange`: the ranks among which
  // batches are split; null: they never are. Batches without DeviceBatch::is_slice() do not use it. The tables, `ops`,
  // `store` and `exchange` must outlive the decoder.
  Decoder(const DecoderSpec& spec, const ParameterLayout& layout, Ops& ops, Tensor rope_table, DecoderSettings settings,
          Tensor selection_biases = {}, ActivationStore* store = nullptr, SequenceExchange* exchange = nullptr);
  ~Decoder();

  // Writes the loss of every token: losses f32 [N] on the device, without the routers' load-balancing loss, so that
  // exp of their mean is the perplexity. Activations are taken from `arena` and given back.
  void forward_loss(Stream& stream, const DeviceBatch& batch, WeightSource& weights, Arena& arena, Tensor losses,
                    const ForwardObserver* observer = nullptr) const;

  // The same with the gradients of grad_scale * sum(losses), and with the routers' loss where the spec asks for it.
  void forward_backward(Stream& stream, const DeviceBatch& batch, WeightSource& weights, GradientSink& gradients,
                        Arena& arena, Tensor losses, float grad_scale) const;

  // Logits f32 [rows, V] of the last `rows` tokens. With a cache (one document), the batch continues it: positions
  // start at cache.used, which is advanced.
  void forward_logits(Stream& stream, const DeviceBatch& batch, WeightSource& weights, Arena& arena, Tensor logits,
                      KvCache* cache) const;

  const DecoderSpec& spec() const;
  // For each unit; see the free function of this name.
  std::vector<bool> remade_inputs() const;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

}  // namespace so
