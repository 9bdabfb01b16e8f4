// The decoder: forward, backward, and forward with a KV cache, written once for every family and device.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/number_formats.h"
#include "device/arena.h"
#include "model/parameters.h"
#include "model/sequence_split.h"
#include "model/spec.h"
#include "offload/memory/activation_store.h"
#include "offload/memory/parameter_source.h"
#include "offload/memory/sequence_exchange.h"
#include "ops/ops.h"

namespace so {

// Device views of one micro-batch: N tokens of `documents` documents, without padding. Where its tokens are split among
// ranks, the slice of this rank, and the documents of all.
struct DeviceBatch {
  Tensor ids, positions;  // i32 [N]
  // The same ids in host memory, which is read while work is enqueued; or none.
  std::span<const std::int32_t> ids_on_host;
  Tensor targets;            // i32 [N], negative where there is no loss; empty when only logits are wanted
  Tensor loss_rows;          // i32 [M]: the rows that have a target, ascending; may be empty (then they are looked for)
  std::int64_t trained = 0;  // M, of all slices; what the router's loss counts by
  AttentionSpans spans;      // cu_q == cu_k; scale, window and sinks are filled in by the decoder
  std::int64_t sequence_tokens = 0;  // of all slices; 0: the micro-batch is whole
  std::int64_t tokens() const { return ids.size(); }
  std::int64_t all_tokens() const { return is_slice() ? sequence_tokens : tokens(); }
  bool is_slice() const { return sequence_tokens > 0; }
};

// Keys and values of the rows seen so far, per layer: T [capacity, 2 * kv_width], keys first (rotated), then values.
struct KvCache {
  std::vector<Tensor> layers;
  std::int64_t used = 0;
};

// The part of its forward pass that a layer keeps for backward. The rest is computed again, to the same bits; each
// value keeps less than the one before and costs more time.
enum class Keep : std::uint8_t {
  all,
  light,  // not what memory-bound work remakes: the norms' outputs, q and k rotated after a qk-norm, the activated.
          // Experts' inputs and activations are never kept
  no_gate_up,  // nor the gate and up projections, whose matrix product is run again
  attention,   // only the layer's input and attention's output: projections are run again, and attention is not
  input,       // only the layer's input: all but the last product is run again
  host,        // the same in host memory (offload/memory/activation_store.h)
  nothing,     // not even its input: backward makes it again, by a forward pass from the last layer below that kept its
               // own. Where the last layer is such a one, the inputs of those in a row that it ends are still there
               // when backward begins
};
std::string_view name_of(Keep keep);
// Returns what each layer keeps if `keep` is asked for (empty: all of all layers). Layers below the first trained unit
// have no backward pass and count as Keep::input. The lowest layer with one keeps at least its input.
std::vector<Keep> kept_by_layer(const std::vector<Keep>& keep, std::int64_t layers, int first_trained_unit);
// By unit, whether its input is made again in backward (offload/schedule/pass_order.h), given kept_by_layer(); empty if
// none is.
std::vector<bool> remade_inputs(const std::vector<Keep>& kept);
// Counts the layers that keep their input in host memory, given what each layer keeps.
int kept_on_host(const std::vector<Keep>& keep);

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
// only enqueue, on one stream. Weights are read through WeightSource, gradients are written through GradientSink.
class Decoder {
 public:
  // rope_table: f32 on the device, as rope_table() of model/rope.h makes it. `store`: host memory for the inputs of
  // layers with Keep::host, an item of [tokens, hidden] each; null if there are none. `exchange`: the ranks among which
  // batches are split; null: they never are. Batches without DeviceBatch::is_slice() do not use it. The table, `ops`,
  // `store` and `exchange` must outlive the decoder.
  Decoder(const DecoderSpec& spec, const ParameterLayout& layout, Ops& ops, Tensor rope_table, DecoderSettings settings,
          ActivationStore* store = nullptr, SequenceExchange* exchange = nullptr);

  // Writes the loss of every token: losses f32 [N] on the device. Where the spec asks for the router's load-balancing
  // loss, every trained token's includes it. Activations are taken from `arena` and given back.
  void forward_loss(Stream& stream, const DeviceBatch& batch, WeightSource& weights, Arena& arena, Tensor losses,
                    const ForwardObserver* observer = nullptr) const;

  // The same with the gradients of grad_scale * sum(losses).
  void forward_backward(Stream& stream, const DeviceBatch& batch, WeightSource& weights, GradientSink& gradients,
                        Arena& arena, Tensor losses, float grad_scale) const;

  // Logits f32 [rows, V] of the last `rows` tokens. With a cache (one document), the batch continues it: positions
  // start at cache.used, which is advanced.
  void forward_logits(Stream& stream, const DeviceBatch& batch, WeightSource& weights, Arena& arena, Tensor logits,
                      KvCache* cache) const;

  const DecoderSpec& spec() const { return spec_; }
  // By unit; see the free function of this name.
  std::vector<bool> remade_inputs() const { return so::remade_inputs(keep_); }

 private:
  struct Pass;
  struct Activations;
  struct Carry;
  struct RouterLoad;

  // Whether a trained parameter lies in the layer or below it: only then is its backward pass needed, or anything kept
  // for it.
  bool has_backward(std::int64_t layer) const { return layer_unit(layer) >= first_trained_; }
  Keep keep_of(std::int64_t layer) const { return keep_[static_cast<std::size_t>(layer)]; }
  bool keeps_nothing(std::int64_t layer) const { return keep_of(layer) == Keep::nothing; }
  Activations acquire_kept(const Pass& pass, std::int64_t layer, Keep keep) const;
  // The tokens that a layer that keeps this works on at a time before and behind attention: `tokens` if not in tiles.
  std::int64_t attention_tile(const Activations& kept, std::int64_t tokens) const;
  std::int64_t mlp_tile(const Activations& kept, std::int64_t tokens) const;
  // Acquire the tensors that the block works with and that are empty. In tiles, without what lasts for one of them;
  // `room`, if not empty, is memory that attention's output may take.
  void complete_attention(const Pass& pass, Activations& a, bool in_tiles = false, Tensor room = {}) const;
  void complete_attention_input(Arena& arena, std::int64_t tokens, Activations& a) const;
  void complete_mlp(Arena& arena, std::int64_t layer, std::int64_t tokens, Activations& a) const;
  void complete_routing(Arena& arena, std::int64_t tokens, Activations& a) const;
  void complete_qk_norms(Arena& arena, std::int64_t tokens, Activations& a) const;
  void complete_output(Arena& arena, std::int64_t tokens, Tensor& raw, Tensor& inv_rms) const;

  const ParameterIndex::Layer& index(std::int64_t layer) const {
    return index_.layers[static_cast<std::size_t>(layer)];
  }
  void embed(const Pass& pass, Tensor x) const;
  float embedding_scale() const;
  // x is computed from the carried stream, or is there if no delta is carried; `out` is what the block adds to it.
  // `tile`: tokens at a time, but for attention, whose output may be there.
  void attention_forward(const Pass& pass, std::int64_t layer, const Activations& a, const Carry& carry, Tensor out,
                         KvCache* cache, std::int64_t tile, bool attended = false) const;
  void attend(const Pass& pass, std::int64_t layer, const Activations& a, KvCache* cache) const;
  void rotate(const Pass& pass, std::int64_t layer, const Activations& a) const;
  void rotate_back(const Pass& pass, std::int64_t layer, GradientSink& gradients, const Activations& a,
                   Tensor dqkv) const;
  // The layer's table of angles; empty if it does not rotate.
  Tensor rope(std::int64_t layer) const;
  // Makes what a block reads: `sum` = x + residual_scale * delta, unless delta is empty and the sum is there, and the
  // norm of it, if the block has one.
  void block_input(const Pass& pass, Joined norm, Tensor normed, Tensor inv_rms, Tensor sum, Tensor x,
                   Tensor delta) const;
  // The norm of what a block adds.
  void output_norm(const Pass& pass, Joined norm, Tensor out, Tensor raw, Tensor inv_rms) const;
  // The gradient of block_input() is added to that of the residual stream.
  void block_input_backward(const Pass& pass, GradientSink& gradients, Joined norm, Tensor sum, Tensor inv_rms,
                            Tensor dnormed, Tensor dresidual) const;
  // Returns the gradient of a block's last product, from that of the residual stream: in `room`, or dresidual itself
  // where there is neither norm nor scale between.
  Tensor block_output_backward(const Pass& pass, GradientSink& gradients, Joined norm, Tensor raw, Tensor inv_rms,
                               Tensor room, Tensor dresidual) const;
  // The last norm, and the scale of the logits.
  void final_norm(const Pass& pass, Tensor normed, Tensor sum, Tensor inv_rms, Tensor x, Tensor delta) const;
  // `out` is what the block adds to a.middle, from a.normed2.
  void mlp_forward(const Pass& pass, std::int64_t layer, const Activations& a, Tensor out) const;
  // Makes a.gate_up, a.mlp_out and its inv_rms again; `room` becomes a.mlp_out, `spare` is written.
  void remake_mlp_out(const Pass& pass, std::int64_t layer, Activations& a, Tensor room, Tensor spare) const;
  // first_rows: of the layer's.
  void experts_forward(const Pass& pass, std::int64_t layer, const Activations& a, Tensor out, bool first_rows) const;
  void route(const Pass& pass, std::int64_t layer, const Activations& a) const;
  void layer_forward(const Pass& pass, std::int64_t layer, const Activations& kept, Carry& carry, KvCache* cache) const;
  void run_layers(const Pass& pass, Carry& carry, KvCache* cache) const;
  void mlp_backward(const Pass& pass, std::int64_t layer, GradientSink& gradients, Activations a, Tensor remade_delta,
                    Tensor dnormed, Tensor dresidual) const;
  // dnormed is overwritten with the gradient of a.normed2, dout is the block's and may lie in dnormed. Empty tensors of
  // `a` are computed again.
  void dense_backward(const Pass& pass, std::int64_t layer, GradientSink& gradients, Activations& a, Tensor dnormed,
                      Tensor dout) const;
  void experts_backward(const Pass& pass, std::int64_t layer, GradientSink& gradients, Activations& a, Tensor dnormed,
                        Tensor dout) const;
  void mlp_backward_in_tiles(const Pass& pass, std::int64_t layer, GradientSink& gradients, const Activations& a,
                             Tensor remade_delta, Tensor dresidual, std::int64_t tile) const;
  // `dnormed` is room for a tile, `room` memory that the gradient of attention's output may take, or empty.
  void attention_backward(const Pass& pass, std::int64_t layer, GradientSink& gradients, Activations a, Tensor dnormed,
                          Tensor dresidual, std::int64_t tile, Tensor room) const;
  void attend_backward(const Pass& pass, std::int64_t layer, GradientSink& gradients, const Activations& a,
                       Tensor dattention, Tensor dqkv) const;
  // The layer's input is there, or is made of what is carried.
  void layer_backward(const Pass& pass, std::int64_t layer, GradientSink& gradients, const Activations& kept,
                      const Carry& carry, Tensor dresidual) const;

  // ---- What layers keep from forward to backward (decoder_pass.cpp) ----
  // By layer. The store begins its pass.
  std::vector<Activations> acquire_layers(const Pass& pass, Carry& carry) const;
  void embedding_backward(const Pass& pass, GradientSink& gradients, Tensor dresidual) const;
  void forward_layers(const Pass& pass, std::vector<Activations>& kept, Carry& carry) const;
  void backward_layers(const Pass& pass, GradientSink& gradients, std::vector<Activations>& kept, Carry& carry,
                       Tensor dresidual) const;
  // Where the layer's input was kept in the store, it is in `kept` again.
  void read_input(const Pass& pass, std::int64_t layer, Activations& kept) const;
  // Runs the layers below `last` forward again, from the one on that kept its input: they find theirs in `kept`, and
  // what goes into `last` is carried.
  void remake_inputs(const Pass& pass, std::int64_t last, std::vector<Activations>& kept, Carry& carry) const;

  // ---- Attention of a slice (decoder_sequence.cpp) ----
  // From the rotated queries and keys of the slice to its a.attention.
  void attend_split(const Pass& pass, std::int64_t layer, Activations a) const;
  // From the gradient of the slice's attention to that of its queries, keys and values.
  void attend_split_backward(const Pass& pass, std::int64_t layer, GradientSink& gradients, Activations a,
                             Tensor dattention, Tensor dqkv) const;
  RankHeads own_heads() const;
  std::int64_t own_width() const;  // of the own heads' queries, keys and values
  Tensor acquire_lse(const Pass& pass) const;
  void complete_own(const Pass& pass, Activations& a) const;
  struct SliceBytes;
  SliceBytes slice_bytes(const Pass& pass, std::int64_t width) const;
  // Writes what goes to the rank that has these heads: [tokens of the slice, width].
  using PackSlice = std::function<void(Tensor part, const RankHeads& heads)>;
  // `all`, [all tokens, width], becomes what the slices of all ranks have packed for this one.
  void to_heads(const Pass& pass, Tensor all, const PackSlice& pack) const;
  // The way back: `packed` becomes the parts of all ranks, each [tokens of the slice, width].
  void to_slices(const Pass& pass, Tensor packed, Tensor all) const;
  void qkv_to_heads(const Pass& pass, const Activations& a, Tensor all) const;
  void attention_to_heads(const Pass& pass, Tensor attention, Tensor all) const;
  Ops::Attention own_attention(const Pass& pass, std::int64_t layer, const Activations& a) const;
  AttentionSize own_attention_size(const Pass& pass, const AttentionSpans& spans) const;
  void unpack_gradient(const Pass& pass, Tensor packed, Tensor dqkv) const;
  // The final norm, the loss, and straight back through them. The carried x is overwritten.
  void head_backward(const Pass& pass, GradientSink& gradients, const Carry& carry, Tensor losses,
                     Tensor dresidual) const;

  AttentionSpans spans(const Pass& pass, std::int64_t layer) const;
  AttentionSize attention_size(const AttentionSpans& spans, std::int64_t q_rows, std::int64_t k_rows) const;
  // The scratch of attention's gradient: no more than in the largest batch, since what smaller ones could use is not
  // always less. Attention makes do with it.
  Tensor acquire_gradient_scratch(Arena& arena, AttentionSize size) const;
  Tensor acquire_bytes(Arena& arena, std::string_view name, std::size_t bytes) const;  // empty when 0
  // The output projection is the embedding when tied, whose unit must be there too.
  void require_head(WeightSource& weights, Stream& stream) const;
  void release_head(WeightSource& weights, Stream& stream) const;
  std::int64_t loss_rows(std::int64_t tokens) const;
  // Empty tensors where the spec asks for no router's loss. `tokens` of the batch.
  RouterLoad acquire_load(Arena& arena) const;
  double router_loss_scale(std::int64_t tokens) const;  // of all slices
  void add_router_loss(const Pass& pass, Tensor losses) const;

  const DecoderSpec spec_;
  const ParameterIndex index_;
  const int first_trained_;  // unit
  Ops& ops_;
  const Tensor rope_;
  const DecoderSettings settings_;
  const std::vector<Keep> keep_;  // by layer
  ActivationStore* const store_;
  SequenceExchange* const exchange_;
  std::vector<int> items_;  // by layer: of the store, -1 for those that are not there
};

}  // namespace so
